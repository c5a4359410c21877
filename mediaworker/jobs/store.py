"""The store of jobs: open jobs are in memory and on disk, ended jobs on disk only.

When the file is lost, a new one is begun with the open jobs. While no file can be opened there are no jobs, but the
worker accepts calls all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Collection
from pathlib import Path

import structlog
from msgspec.structs import replace

from config import Settings
from config.metrics.registry import MetricsRegistry
from mediaworker.errors import MediaworkerError
from mediaworker.events.frame import timestamp
from mediaworker.files.segments import FileSegment
from mediaworker.jobs.database import JobDatabase
from mediaworker.jobs.record import Job, State
from mediaworker.jobs.sources import Sources
from mediaworker.storage.database_thread import StoreError, reason_of
from mediaworker.storage.renewable import RenewableStore
from mediaworker.storage.sqlite import UnusableDatabase, erase_set_aside

FILE = "jobs.sqlite3"
UNKNOWN_S = 86400.0
"""The time for which an upload without a job is kept, because the operator may restore the store from a copy."""
log = structlog.get_logger()


class JobElsewhere(MediaworkerError):
    """The job now belongs to another worker of the cluster, or was ended or erased there."""


class JobStore(RenewableStore[JobDatabase]):
    """The jobs of one worker. `clock` returns Unix time."""

    KIND = "job store"
    RECORDS = "jobs and segments"
    THREAD = "jobs"
    LOST = "results from before are not in the new one"
    BEGUN = "a new one was begun, with the jobs that have not ended"

    on_change: Callable[[str], None] = staticmethod(lambda job_id: None)
    """Called when another worker has changed or erased a job."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(Path(settings.data_dir) / FILE, JobDatabase, lambda: timestamp(clock()))
        self.sources, self.clock = Sources(settings), clock
        self.open: dict[str, Job] = {}
        """The jobs that have not ended or have a webhook to post. While the disk is full they are newer than its
        records."""
        self.ended: dict[State, int] = {"completed": 0, "failed": 0, "cancelled": 0}
        self.trouble: str | None = None
        """Why jobs cannot be stored; None while they can."""
        self._carried: dict[str, list[tuple[str, int, str]]] = {}
        """The segments saved from a lost file that is closed already, while no new file could be opened."""
        self.unwritten: set[str] = set()
        """The jobs whose failure could not be written yet."""

    async def start(self) -> None:
        """Open the file and queue its open jobs again. Raises StoreError; it may be tried again."""
        try:
            await self._open()
            await self._begin()
        except (OSError, sqlite3.Error, StoreError) as error:
            await self.close()
            self.trouble = f"{FILE}: {reason_of(error)}"
            raise StoreError(self.trouble) from error
        self.trouble = None

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        super().add_metrics(metrics)
        metrics.counter("jobs_ended", "Counts finished jobs by how they ended.", lambda: self.ended, "status")
        metrics.gauge("job_store_ok", "Is 1 while jobs can be stored.", lambda: self.trouble is None)

    @property
    def warnings(self) -> list[str]:
        trouble = [f"jobs cannot be stored: {self.trouble}"] if self.trouble is not None else []
        return trouble + super().warnings

    async def _begin(self) -> None:
        """Load the open jobs, and clean up the uploads. Raises StoreError, OSError."""
        for job in await self.write(JobDatabase.active):
            self.open[job.id] = job
            if job.state == "running":
                await self.remember(replace(job, state="queued"))
        lost = await asyncio.to_thread(self.sources.erase_incomplete)
        restored = await self._restore_lost()
        kept = await self.sweep_uploads()
        active = sum(job.active for job in self.open.values())
        log.info("jobs", open=active, incomplete_uploads=lost, restored=restored, unknown_uploads=kept)

    async def _restore_lost(self) -> int:
        """Make the jobs again whose rows the store has lost, from the requests beside their uploads; return their
        number."""
        restored, uploads = 0, await asyncio.to_thread(self.sources.uploads)
        for job_id in sorted(uploads - (await self.read(lambda database: database.activity(uploads))).keys()):
            job = await asyncio.to_thread(self.sources.requested, job_id)
            if job is not None:
                await self.put(replace(job, chunks=len(await self.segments(job_id))))
                log.warning("a job that the store had lost is queued again", job=job_id)
                restored += 1
        return restored

    async def sweep_uploads(self, *, sure: bool = False) -> int:
        """Erase the uploads of jobs that have ended. If the clock is `sure`, also erase uploads without a job that are
        older than a day. Return the number of uploads without a job that are left. Raises StoreError, OSError."""
        uploads = await asyncio.to_thread(self.sources.uploads)
        known = await self.read(lambda database: database.activity(uploads))
        for job_id, active in known.items():
            if not active:
                await asyncio.to_thread(self.sources.drop, job_id)
        unknown = uploads - known.keys()
        return await asyncio.to_thread(self.sources.erase_unknown, unknown, self.clock() - UNKNOWN_S if sure else 0.0)

    async def sweep_set_aside(self, keep_s: float) -> None:
        """Erase damaged files that were set aside as long ago as ended jobs are kept: they hold transcripts as well."""
        if names := await asyncio.to_thread(erase_set_aside, self.file, self.clock() - keep_s):
            log.info("damaged job stores erased", names=names)

    # -- the file under it --------------------------------------------------------------------------------------------

    async def renew(self, error: UnusableDatabase) -> set[str]:
        """Go on in a new file with the open jobs; return the jobs whose segments are lost and which begin again. Raises
        StoreError; it may be tried again."""
        jobs, lost, self.trouble = dict(self.open), set[str](), str(error)

        def carry(old: JobDatabase) -> None:
            self._carried = old.carry(jobs)

        def restore(new: JobDatabase) -> None:
            lost.update(job_id for job_id, job in jobs.items() if job_id not in self._carried and job.active)
            kept = [_from_the_beginning(job) if job.id in lost else job for job in jobs.values()]
            new.restore(kept, (row for rows in self._carried.values() for row in rows))

        try:
            await self._renew(error, carry, restore)
        except StoreError as failed:
            self.trouble = str(failed)
            raise
        self.trouble, self._carried = None, {}
        for job in tuple(self.open.values()):
            if job is not jobs.get(job.id):  # it was put during the renewal, perhaps into the old file
                await self.put(_from_the_beginning(job) if job.id in lost else job)
        return lost

    def begin_anew(self, job_ids: Collection[str]) -> None:
        """Reset these open jobs in memory, as `renew` has written them to the new file."""
        for job_id in job_ids:
            if (job := self.open.get(job_id)) is not None and job.active:
                self.open[job_id] = _from_the_beginning(job)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _why_closed(self) -> str:
        return self.trouble or super()._why_closed()

    async def find(self, job_id: str) -> Job | None:
        """Return the job as it was last put; None when there is none. Raises StoreError."""
        if (job := self.open.get(job_id)) is not None:
            return job
        return await self.read(lambda database: database.job(job_id))

    async def segments(self, job_id: str) -> list[FileSegment]:
        """Return the job's stored segments. Raises StoreError."""
        return await self.read(lambda database: database.segments(job_id))

    async def put(self, job: Job, segment: FileSegment | None = None, *, anew: bool = False) -> None:
        """Write the job (`JobDatabase.put`). Raises StoreError."""
        await self.write(lambda database: database.put(job, segment, anew=anew))
        self.trouble = None
        self.open[job.id] = job

    async def remember(self, job: Job) -> None:
        """Put the job; while the store cannot be written, keep it in memory only."""
        self.open[job.id] = job
        try:
            await self.put(job)
        except StoreError as error:
            self.trouble = str(error)

    async def add(self, job: Job) -> None:
        """Put a new job whose source is complete. Raises StoreError, OSError."""
        await self.put(job)

    async def claim(self, job: Job) -> None:
        """Mark the job as running on this worker, which has its file. Raises StoreError, JobElsewhere, OSError,
        SourceError."""
        started_s = job.started_s or self.clock()
        await self.put(replace(job, state="running", started_s=started_s, error="", code=""))

    async def release(self, job_id: str) -> None:
        """Hand the job back when this worker stops running it; a store that workers share overrides it."""

    def may_run(self, job: Job) -> bool:
        """Return whether the job is queued for this worker, perhaps among others."""
        return job.state == "queued"

    def owns(self, job: Job) -> bool:
        """Return whether this worker is the one that runs the job, or posts its webhook when it has ended."""
        return True

    async def erase(self, job_id: str) -> None:
        """Erase an ended job with its result and its upload. Raises StoreError, OSError."""
        # The upload is erased first: an upload whose job has no row would become a job again at the next start.
        await asyncio.to_thread(self.sources.drop, job_id)
        await self.write(lambda database: database.erase(job_id))

    async def end(self, job: Job, state: State) -> Job:
        """End the job and erase its upload; a webhook to post keeps it open. Raises StoreError."""
        job = self._as_ended(job, state)
        await self.put(job)
        self._count_ended(job)
        await self.let_go(job)
        return job

    def end_unwritten(self, job: Job, error: StoreError) -> None:
        """Fail the job in memory while the store cannot be written; `write_ended` writes its end later.

        If the worker restarts before that, the job is queued again.
        """
        self.trouble = str(error)
        job = self.open[job.id] = self._as_ended(job, "failed")
        self.unwritten.add(job.id)
        self._count_ended(job)

    async def write_ended(self) -> None:
        """Write the ends of jobs that could not be written before. Raises StoreError."""
        for job_id in tuple(self.unwritten):
            job = self.open.get(job_id)
            with contextlib.suppress(JobElsewhere):
                if job is not None and not job.active:
                    await self.put(job)
                    await self.let_go(job)
            self.unwritten.discard(job_id)

    def _as_ended(self, job: Job, state: State) -> Job:
        return replace(job, state=state, ended_s=self.clock(), not_before_s=0.0, waits_since_s=0.0)

    def _count_ended(self, job: Job) -> None:
        self.ended[job.state] += 1
        seconds = job.duration_s
        log.info("job ended", job=job.id, state=job.state, segments=job.chunks, seconds=seconds, reason=job.error)

    async def let_go(self, job: Job) -> None:
        """Erase the upload of a job whose end is stored, and drop it from `open` unless a webhook is to be posted."""
        if job.over:
            self.open.pop(job.id, None)
        if not job.source.path:
            try:
                await asyncio.to_thread(self.sources.drop, job.id)
            except OSError as error:  # the next start tries again
                log.warning("an upload could not be erased", job=job.id, reason=reason_of(error))


def _from_the_beginning(job: Job) -> Job:
    return replace(job, state="queued", chunks=0, failed_chunks=0, done_s=0.0)
