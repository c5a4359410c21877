"""The SQLite file of jobs: every query, and no threads.

A file of its own beside that of the events: a film's thousand small writes are not in the queue of a call's final.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from mediaworker.files.segments import Segment
from mediaworker.jobs.record import ACTIVE, Job
from mediaworker.sqlite import SqliteFile

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
)

_job = msgspec.json.Decoder(Job)
_segment = msgspec.json.Decoder(Segment)
_encoder = msgspec.json.Encoder()


class JobDatabase(SqliteFile):
    """See `SqliteFile`; OSError, too, may be raised by the making of it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(path, MIGRATIONS)

    def put(self, job: Job, segment: Segment | None = None, *, anew: bool = False) -> None:
        """The job as it is now, in one transaction with a segment of it. `anew`: those it had are not its own."""
        with self._transaction():
            if anew:
                self.execute("DELETE FROM segments WHERE job_id = ?", (job.id,))
            if segment is not None:
                row = (job.id, segment.index, _encoder.encode(segment).decode())
                self.execute("INSERT INTO segments VALUES (?, ?, ?)", row)
            record = _encoder.encode(job).decode()
            self.execute("INSERT OR REPLACE INTO jobs (id, record) VALUES (?, ?)", (job.id, record))

    def erase(self, job_id: str) -> None:
        with self._transaction():
            self.execute("DELETE FROM segments WHERE job_id = ?", (job_id,))
            self.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
        self.execute("PRAGMA incremental_vacuum").fetchall()
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # until then the old pages are still in the log

    def job(self, job_id: str) -> Job | None:
        found = self.execute("SELECT record FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if found is None else _job.decode(found[0])

    def jobs(self, limit: int, *, after: str | None, owner: str | None, state: str | None) -> list[Job]:
        """Newest first, at most `limit`, older than the job `after`; of one owner, in one state."""
        where, arguments = ["1"], list[object]()
        for clause, value in (("id < ?", after), ("owner = ?", owner), ("state = ?", state)):
            if value is not None:
                where.append(clause)
                arguments.append(value)
        query = f"SELECT record FROM jobs WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?"
        return [_job.decode(record) for (record,) in self.execute(query, (*arguments, limit))]

    def active(self) -> list[Job]:
        """Oldest first: those that are not over, and those whose webhook is not."""
        marks = ", ".join("?" * len(ACTIVE))
        query = (
            f"SELECT record FROM jobs WHERE state IN ({marks}) OR (json_extract(record, '$.webhook.url') IS NOT NULL "
            "AND ifnull(json_extract(record, '$.webhook.state'), 'waiting') = 'waiting') ORDER BY id"
        )
        return [_job.decode(record) for (record,) in self.execute(query, ACTIVE)]

    def segments(self, job_id: str) -> list[Segment]:
        query = "SELECT segment FROM segments WHERE job_id = ? ORDER BY number"
        return [_segment.decode(segment) for (segment,) in self.execute(query, (job_id,))]

    def ended_before(self, seconds: float, limit: int) -> list[str]:
        query = "SELECT id FROM jobs WHERE ended_s IS NOT NULL AND ended_s < ? ORDER BY ended_s LIMIT ?"
        return [job_id for (job_id,) in self.execute(query, (seconds, limit))]
