"""Runs one job: its segments become rows of the store, until the job ends or is put off."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing

import structlog
from msgspec.structs import replace

from mediaworker.files.decoder_process import FileRefused
from mediaworker.files.segments import FileSegment
from mediaworker.files.service import FileService
from mediaworker.files.transcription import EngineUnavailable, FileTask, FileTranscription, SourceChanged
from mediaworker.jobs.record import Job
from mediaworker.jobs.sources import SourceError
from mediaworker.jobs.store import JobElsewhere, JobStore
from mediaworker.storage.database_thread import StoreError

AGAIN_S = (2.0, 20.0)
"""Bounds of the pause before a job that was put off is tried again. Within them, the pause is as long as the job has
waited so far, so it roughly doubles from try to try."""

log = structlog.get_logger()


class JobRun:
    """One attempt at a job of the store, after which it has ended or is put off. When the attempt is cancelled, the job
    stays as it is.

    Args:
        patience_s: the time after which a job that is put off again and again fails.
    """

    def __init__(self, job_id: str, store: JobStore, files: FileService, *, patience_s: float) -> None:
        self._id, self._store, self._files, self._patience_s = job_id, store, files, patience_s
        self._work: FileTranscription | None = None

    @property
    def _job(self) -> Job:
        """The job's latest record. Raises JobElsewhere."""
        try:
            return self._store.open[self._id]
        except KeyError:
            raise JobElsewhere from None

    def now(self, job: Job) -> Job:
        """Return the job with the facts and the progress of its file so far."""
        work = self._work
        if work is None or not job.active:
            return job
        opened = work.facts.opened
        duration_s = opened.duration_s if opened is not None else job.duration_s
        channels = opened.channels if opened is not None else job.channels
        return replace(job, done_s=max(job.done_s, work.done_s), duration_s=duration_s, channels=channels)

    async def go(self) -> None:
        try:
            await self._go()
        except JobElsewhere:
            log.info("a job belongs to another worker now", job=self._id)

    async def _go(self) -> None:
        try:
            try:
                await self._attempt()
            except SourceChanged:
                # The file is cut at other places than before, because another machine or version has decoded it now.
                # The known segments do not match these cuts, so the job begins again without them.
                log.warning("a job begins again: its file is cut at other places than before", job=self._id)
                await self._store.put(replace(self._job, chunks=0, failed_chunks=0, done_s=0.0), anew=True)
                await self._attempt()
        except EngineUnavailable as error:
            await self._put_off(f"there is no engine: {error}")
        except StoreError as error:
            self._store.trouble = str(error)
            await self._put_off(f"the job store: {error}")
        except OSError as error:
            await self._put_off(error.strerror or str(error))
        except FileRefused as refused:
            await self._fail(refused.fault, refused.reason)
        except SourceError as error:
            await self._fail("source", str(error))
        except JobElsewhere:
            raise
        except Exception as error:
            log.exception("a job failed", job=self._id)
            await self._fail("internal", f"the worker could not run the job ({type(error).__name__}); see its log")

    async def _attempt(self) -> None:
        store = self._store
        await store.claim(self._job)
        known = {segment.index: segment for segment in await store.segments(self._id)}
        failed = sum(segment.error is not None for segment in known.values())
        job = store.open[self._id] = replace(self._job, chunks=len(known), failed_chunks=failed)
        with os.fdopen(await asyncio.to_thread(store.sources.open, job), "rb") as source:
            task = FileTask(source.fileno(), job.source.filename, job.options, job.id, known=known)
            with self._files.transcription(task) as work:
                self._work = work
                async with aclosing(work.segments()) as found:
                    async for segment in found:
                        await self._add(segment)
                ended = work.facts.ended
                assert ended is not None
                await asyncio.to_thread(store.sources.check, job, source.fileno())
                job = replace(self.now(self._job), duration_s=ended.duration_s, done_s=ended.duration_s)
        await store.end(replace(job, damaged=ended.damaged, jumps=ended.jumps), "completed")

    async def _add(self, segment: FileSegment) -> None:
        job = self.now(self._job)
        failed = job.failed_chunks + (segment.error is not None)
        await self._store.put(replace(job, chunks=job.chunks + 1, failed_chunks=failed, waits_since_s=0.0), segment)
        log.debug("segment", job=self._id, number=segment.index, start_ms=segment.start_ms)

    async def _put_off(self, reason: str) -> None:
        """Put the job off; it fails once it has been put off for longer than `patience_s`."""
        now_s, job = self._store.clock(), self._job
        since_s = job.waits_since_s or now_s
        if now_s - since_s > self._patience_s:
            await self._fail("gave_up", reason)
            return
        log.warning("a job waits", job=self._id, reason=reason)
        await self._store.remember(waiting(replace(job, error=reason, code="waiting"), now_s))

    async def _fail(self, code: str, reason: str) -> None:
        """End the job as failed, even while the store cannot be written."""
        job = replace(self._job, code=code, error=reason)
        try:
            await self._store.end(job, "failed")
        except StoreError as error:
            self._store.end_unwritten(job, error)


def waiting(job: Job, now_s: float) -> Job:
    """Return the job as queued, to be tried again after a pause."""
    since_s = job.waits_since_s or now_s
    wait_s = min(max(now_s - since_s, AGAIN_S[0]), AGAIN_S[1])
    return replace(job, state="queued", waits_since_s=since_s, not_before_s=now_s + wait_s)
