"""The SQLite file of jobs: every query on its tables. A `JobDatabase` is used by one thread only.

Jobs have a file of their own, so that the many small writes of a long recording do not delay the commit of a call's
final in the file of the events.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterable

import msgspec

from mediaworker.files.segments import FileSegment
from mediaworker.jobs.record import Job, is_job_id
from mediaworker.storage.sqlite import SqliteFile

# Each entry brings the file from version n to n + 1 (PRAGMA user_version). Never edit one that was released.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY,
        record TEXT NOT NULL,
        owner TEXT AS (json_extract(record, '$.owner')),
        state TEXT AS (ifnull(json_extract(record, '$.state'), 'queued')),
        ended_s REAL AS (json_extract(record, '$.ended_s'))
    ) WITHOUT ROWID;
    CREATE INDEX jobs_by_owner ON jobs (owner, id);
    CREATE INDEX jobs_by_end ON jobs (ended_s) WHERE ended_s IS NOT NULL;
    CREATE TABLE segments (
        job_id TEXT NOT NULL,
        number INTEGER NOT NULL,
        segment TEXT NOT NULL,
        PRIMARY KEY (job_id, number)
    ) WITHOUT ROWID;
    """,
    # A start finds the jobs that are not over without a scan of all jobs.
    """
    CREATE INDEX open_jobs ON jobs (id) WHERE state IN ('queued', 'running')
        OR (json_extract(record, '$.webhook.url') IS NOT NULL
            AND ifnull(json_extract(record, '$.webhook.state'), 'waiting') = 'waiting');
    """,
)
OPEN_JOBS = """
    SELECT id FROM jobs INDEXED BY open_jobs WHERE state IN ('queued', 'running')
        OR (json_extract(record, '$.webhook.url') IS NOT NULL
            AND ifnull(json_extract(record, '$.webhook.state'), 'waiting') = 'waiting') ORDER BY id
"""

_job = msgspec.json.Decoder(Job)
_segment = msgspec.json.Decoder(FileSegment)
_encoder = msgspec.json.Encoder()


class JobDatabase(SqliteFile):
    """See `SqliteFile`. A commit survives a power cut."""

    MIGRATIONS, SYNC, RECORDS = MIGRATIONS, True, ("jobs", "id")

    def put(self, job: Job, segment: FileSegment | None = None, *, anew: bool = False) -> None:
        """Write the job, in one transaction with one more segment. `anew`: its earlier segments are deleted."""
        with self._transaction():
            if anew:
                self.execute("DELETE FROM segments WHERE job_id = ?", (job.id,))
            if segment is not None:
                row = (job.id, segment.index, _encoder.encode(segment).decode())
                # It replaces a row that could not be read, whose segment has been recognised again.
                self.execute("INSERT OR REPLACE INTO segments VALUES (?, ?, ?)", row)
            self._put(job)

    def _put(self, job: Job) -> None:
        record = _encoder.encode(job).decode()
        self.execute("INSERT OR REPLACE INTO jobs (id, record) VALUES (?, ?)", (job.id, record))

    def carry(self, job_ids: Collection[str]) -> dict[str, list[tuple[str, int, str]]]:
        """Return the rows of the jobs' segments, by job; a job whose segments cannot be read is left out."""
        found = {}
        for job_id in job_ids:
            with contextlib.suppress(sqlite3.Error):
                query = "SELECT job_id, number, segment FROM segments WHERE job_id = ?"
                found[job_id] = self.execute(query, (job_id,)).fetchall()
        return found

    def restore(self, jobs: Iterable[Job], segments: Iterable[tuple[str, int, str]]) -> None:
        """Write jobs and segments of a lost file into this new one."""
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO segments VALUES (?, ?, ?)", segments)
            for job in jobs:
                self._put(job)

    def erase(self, job_id: str) -> None:
        with self._transaction():
            self.execute("DELETE FROM segments WHERE job_id = ?", (job_id,))
            self.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
        self.execute("PRAGMA incremental_vacuum").fetchall()
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the old pages stay readable in the log until then

    def job(self, job_id: str) -> Job | None:
        found = self.execute("SELECT CAST(record AS BLOB) FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if found is None else self._job(job_id, found[0])

    def jobs(self, limit: int, *, after: str | None, owner: str | None, state: str | None) -> list[Job]:
        """Return at most `limit` jobs older than the job `after`, newest first; of one owner and in one state, or of
        any."""
        where, arguments = ["1"], list[object]()
        for clause, value in (("id < ?", after), ("owner = ?", owner), ("state = ?", state)):
            if value is not None:
                where.append(clause)
                arguments.append(value)
        query = f"SELECT id, CAST(record AS BLOB) FROM jobs WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?"
        found = [self._job(*row) for row in self.execute(query, (*arguments, limit))]
        return [job for job in found if job is not None]

    def ids(self) -> list[str]:
        return [job_id for (job_id,) in self.execute("SELECT id FROM jobs")]

    def latest(self) -> str | None:
        """Return the id of the newest job, which contains the time of its creation; None when there is no job."""
        found = self.execute("SELECT max(id) FROM jobs").fetchone()[0]
        return found if isinstance(found, str) and is_job_id(found) else None

    def probe(self) -> None:
        self.execute(OPEN_JOBS).fetchall()
        self.execute("SELECT job_id, number FROM segments LIMIT 1").fetchall()

    def active(self) -> list[Job]:
        """Return the jobs that have not ended or have a webhook to post, oldest first. A damaged record is deleted: the
        request that is kept beside its upload may make the job again."""
        found = []
        for (job_id,) in self.execute(OPEN_JOBS).fetchall():
            if (job := self.job(job_id)) is not None:
                found.append(job)
            else:
                self.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
        return found

    def activity(self, job_ids: Iterable[str]) -> dict[str, bool]:
        """Return whether each of these jobs is active; a job without a row is left out."""
        found = {job_id: self.job(job_id) for job_id in job_ids}
        return {job_id: job.active for job_id, job in found.items() if job is not None}

    def segments(self, job_id: str) -> list[FileSegment]:
        """Return the job's segments; damaged ones are left out and will be recognised again."""
        query = "SELECT number, CAST(segment AS BLOB) FROM segments WHERE job_id = ? ORDER BY number"
        rows = self.execute(query, (job_id,))
        found = [self._intact(_segment, stored, f"stretch {number} of job {job_id}") for number, stored in rows]
        return [segment for segment in found if segment is not None]

    def _job(self, job_id: str, stored: object) -> Job | None:
        return self._intact(_job, stored, f"job {job_id}")

    def ended_before(self, seconds: float, limit: int) -> list[str]:
        query = "SELECT id FROM jobs WHERE ended_s IS NOT NULL AND ended_s < ? ORDER BY ended_s LIMIT ?"
        return [job_id for (job_id,) in self.execute(query, (seconds, limit))]
