"""The book of jobs: the open ones in memory as they are on disk, the ended ones on disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog
from msgspec.structs import replace

from mediaworker.database_thread import DatabaseThread, StoreError, say
from mediaworker.files.segments import Segment
from mediaworker.jobs.database import JobDatabase
from mediaworker.jobs.record import Job, State
from mediaworker.jobs.sources import Sources

T = TypeVar("T")
FILE = "jobs.sqlite3"
log = structlog.get_logger()


class Book:
    """See the module. `clock`: Unix time."""

    def __init__(self, folder: Path, sources: Sources, *, clock: Callable[[], float]) -> None:
        self.sources, self.clock = sources, clock
        self.open: dict[str, Job] = {}
        """Not ended, or ended and somebody waits to be told. Ahead of the disk while that is full."""
        self.ended: dict[State, int] = {"completed": 0, "failed": 0, "cancelled": 0}
        self.trouble: str | None = None
        """Why jobs cannot be written down, since the last time they could."""
        self._folder = folder
        self._database: DatabaseThread[JobDatabase] | None = None

    async def start(self) -> None:
        """Open jobs are at their places in the queue again. Raises StoreError."""
        try:
            self._database = await DatabaseThread.open("jobs", lambda: JobDatabase(self._folder / FILE))
            for job in await self.read(JobDatabase.active):
                self.open[job.id] = job
                if job.state == "running":
                    await self.remember(replace(job, state="queued"))
            lost = await asyncio.to_thread(self.sources.sweep, {job.id for job in self.open.values() if job.active})
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{self._folder}: {say(error)}") from error
        log.info("jobs", open=sum(job.active for job in self.open.values()), incomplete_uploads=lost)

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()
            self._database = None

    async def read(self, query: Callable[[JobDatabase], T]) -> T:
        """Raises StoreError."""
        if self._database is None:
            raise StoreError("the job store is closed")
        return await self._database.run(query)

    async def put(self, job: Job, segment: Segment | None = None, *, anew: bool = False) -> None:
        """As `JobDatabase.put`. Raises StoreError."""
        await self.read(lambda database: database.put(job, segment, anew=anew))
        self.trouble = None
        self.open[job.id] = job

    async def remember(self, job: Job) -> None:
        """Put, or kept in memory alone when that is not possible."""
        self.open[job.id] = job
        try:
            await self.put(job)
        except StoreError as error:
            self.trouble = str(error)

    async def end(self, job: Job, state: State) -> Job:
        """The upload goes; a webhook keeps the job open. Raises StoreError."""
        job = replace(job, state=state, ended_s=self.clock(), not_before_s=0.0, waits_since_s=0.0)
        await self.put(job)
        self.ended[state] += 1
        if job.webhook is None:
            del self.open[job.id]
        log.info("job ended", job=job.id, state=state, segments=job.chunks, seconds=job.duration_s, reason=job.error)
        if not job.source.path:
            try:
                await asyncio.to_thread(self.sources.drop, job.id)
            except OSError as error:  # the next start tries again
                log.warning("an upload could not be erased", job=job.id, reason=say(error))
        return job
