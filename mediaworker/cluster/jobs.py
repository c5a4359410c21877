"""The jobs of all workers: any of them runs, shows, cancels and erases each.

A job's record is a key in a bucket of JetStream, and a change is taken only on top of the latest one, so that of two
workers one has the job; several servers of NATS 2.9 may take two changes at once, and the later one counts. Its
stretches are keys of another bucket, and its upload is in an object store. Every worker keeps the records of all in its
own store of jobs, which is otherwise as that of a worker alone; jobs that it had before it joined are published when it
does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

import msgspec
import structlog
from msgspec.structs import replace
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import InvalidKeyError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from config import Settings
from config.tasks import end_tasks, within
from mediaworker.cluster.connection import NatsConnection
from mediaworker.cluster.job_files import RECORDS, JobFiles, asking, patiently
from mediaworker.cluster.reader import StreamReader
from mediaworker.files.segments import FileSegment
from mediaworker.jobs.database import JobDatabase
from mediaworker.jobs.record import Job, State, created_s, is_job_id
from mediaworker.jobs.sources import SourceError
from mediaworker.jobs.store import UNKNOWN_S, JobElsewhere, JobStore
from mediaworker.storage.database_thread import StoreError
from mediaworker.storage.sqlite import UnusableDatabase

RETRY_S = 1.0
KNOWN_S = 10.0
"""A worker that has just joined takes a job when it knows the others, if that is within this."""
log = structlog.get_logger("cluster")

_job, _encoder = msgspec.json.Decoder(Job), msgspec.json.Encoder()


def _record(key: str, payload: bytes) -> Job:
    """Whoever writes to NATS may write anything: an id is also the name of a file. Raises ValueError."""
    job = _job.decode(payload)
    if job.id != key or not is_job_id(key):
        raise ValueError("its id is another one than its key, or none")
    return job


class ClusterJobStore(JobStore):
    """See the module. `join` once NATS is there, and each time it is there again; until then no job is taken."""

    def __init__(
        self, connection: NatsConnection, settings: Settings, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(settings, clock=clock)
        self.taken_over = self.unreadable = 0
        self._connection, self._own = connection, ""
        self._files = JobFiles(connection, self.sources)
        self._revisions: dict[str, int] = {}
        """Of each record, as it was last seen or written."""
        self._learning = asyncio.Lock()
        self._not_here: set[str] = set()
        """Jobs whose path this worker does not have."""
        self._ending = set[str]()
        """Jobs that this worker is just ending: nobody is told who would end their runs for it."""
        self._reader: StreamReader | None = None
        self._complete = asyncio.Event()
        """This worker has known all records once."""
        self._reconciling: asyncio.Task[None] | None = None

    def join(self, own: str) -> None:
        """`own`: the id by which other workers know this one."""
        self._own = own
        if self._reader is None:
            stream = self._files.record_stream
            self._reader = StreamReader(
                self._connection, stream, begin=self._begin_reading, begun=self._on_begun, take=self._take_message
            )
        self._reader.start()

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.stop()
        await end_tasks(self._reconciling)
        await super().close()

    async def _begin(self) -> None:
        """The records come from the bucket."""
        await asyncio.to_thread(self.sources.erase_incomplete)
        if self._reader is not None:  # it has come before this store was open
            self._reader.start()

    # -- what a worker alone does in its own store --------------------------------------------------------------------

    def may_run(self, job: Job) -> bool:
        return self._complete.is_set() and super().may_run(job) and job.id not in self._not_here

    def owns(self, job: Job) -> bool:
        return job.worker == self._own

    async def add(self, job: Job) -> None:
        if job.source.path:
            job = replace(job, source=replace(job.source, worker=self._own))
        else:
            await self._files.upload(job)
        try:
            with contextlib.suppress(JobElsewhere):  # it is in the bucket, and another worker was quick to take it
                await self.put(job)
        except StoreError:
            if not job.source.path:
                with contextlib.suppress(StoreError):
                    await self._files.erase_upload(job.id)
            raise

    async def put(self, job: Job, segment: FileSegment | None = None, *, anew: bool = False) -> None:
        """`job` is what becomes of the record as it is known when this is called; if another worker has changed that
        meanwhile, it is JobElsewhere."""
        job, known = replace(job, worker=self._own), self.open.get(job.id)
        if not self._complete.is_set():
            await self._until_known()
        revision = self._revisions.get(job.id, 0)
        if known is None and revision:
            raise JobElsewhere
        if anew:
            await self._files.erase_segments(job.id)
        if segment is not None:
            await self._files.put_segment(job.id, segment)
        revision = await self._publish(job, revision)
        async with self._learning:
            if self._revisions.get(job.id, 0) > revision:
                raise JobElsewhere
            self._revisions[job.id] = revision
            self.open[job.id], self.trouble = job, None
            # Progress is in the bucket; here it is enough to find the job by its state.
            if known is None or known.state != job.state or not job.active:
                await super().put(job)

    async def _until_known(self) -> None:
        """Raises StoreError."""
        trouble = self._connection.trouble
        if not trouble:
            async with within(KNOWN_S):
                await self._complete.wait()
                return
        raise StoreError(f"the jobs of the cluster are not known yet: {trouble or 'they are still being read'}")

    async def remember(self, job: Job) -> None:
        with contextlib.suppress(JobElsewhere):
            await super().remember(job)

    async def claim(self, job: Job) -> None:
        if job.source.path and job.source.worker != self._own:
            try:
                os.close(await asyncio.to_thread(self.sources.open, job))
            except SourceError:
                self._not_here.add(job.id)
                raise JobElsewhere from None
        await super().claim(job)
        if not job.source.path:
            await self._files.fetch(job)

    async def renew(self, error: UnusableDatabase) -> set[str]:
        lost = await super().renew(error)
        self._revisions.clear()  # the ended ones come again
        if self._reader is not None:
            self._reader.start()
        return lost

    async def release(self, job_id: str) -> None:
        job = self.open.get(job_id)
        if job is not None and job.state == "running" and self.owns(job):
            job = replace(job, state="queued")
            try:
                await self.put(job)
            except StoreError as error:  # others go on believing that it runs here, so it waits for this worker
                self.open[job_id], self.trouble = job, str(error)
            except JobElsewhere:
                pass

    async def find(self, job_id: str) -> Job | None:
        """One that another worker has just taken may not have been read yet: the bucket has it."""
        if (job := await super().find(job_id)) is not None:
            return job
        async with asking():
            bucket = await self._files.records()
            try:
                entry = await bucket.get(job_id)
                job = _record(job_id, entry.value or b"")
            except (KeyNotFoundError, InvalidKeyError, ValueError):
                return None
        await self._learn(job_id, entry.revision or 0, job)
        return self.open.get(job_id, job)

    async def segments(self, job_id: str) -> list[FileSegment]:
        return await self._files.segments(job_id)

    async def end(self, job: Job, state: State) -> Job:
        self._ending.add(job.id)
        try:
            job = await super().end(job, state)
            if not job.source.path:
                with contextlib.suppress(StoreError):  # the sweep tries again
                    await self._files.erase_upload(job.id)
        finally:
            self._ending.discard(job.id)
        return job

    async def erase(self, job_id: str) -> None:
        await self._files.erase_segments(job_id)
        await self._files.erase_upload(job_id)
        await self._files.erase_record(job_id)
        await super().erase(job_id)

    async def sweep_uploads(self, *, sure: bool = False) -> int:
        """Those of this worker, and of the object store those whose jobs have ended, or that nobody has begun a job
        with for a day: the worker that was sending them has been killed."""
        if not self._complete.is_set():
            return 0
        uploads = await self._files.uploads() | set(filter(is_job_id, await self._files.parts()))
        known = await self.read(lambda database: database.activity(uploads))
        for job_id in uploads:
            if not known.get(job_id, not sure or created_s(job_id) > self.clock() - UNKNOWN_S):
                await self._files.erase_upload(job_id)
        return await super().sweep_uploads(sure=sure)

    # -- workers that are gone -----------------------------------------------------------------------------------------

    def workers(self) -> set[str]:
        """Others, by their ids, that run a job or are to post a webhook."""
        return {job.worker for job in self.open.values() if job.state != "queued"} - {self._own}

    async def take_over(self, worker: str) -> None:
        """It is gone: what it ran goes on wherever there is room, and what it was to post is posted here."""
        for job_id in tuple(self.open):
            job = self.open.get(job_id)
            if job is None or job.worker != worker or job.state == "queued":
                continue
            with contextlib.suppress(StoreError, JobElsewhere):
                await self.put(replace(job, state="queued") if job.active else job)
                self.taken_over += 1
                log.warning("job taken over: its worker is gone", job=job_id, worker=worker)
                self.on_change(job_id)

    # -- the bucket of records -----------------------------------------------------------------------------------------

    async def _publish(self, job: Job, revision: int) -> int:
        """On top of `revision` (0: there is none). -> the new one. Raises StoreError, JobElsewhere."""
        payload = _encoder.encode(job)

        async def write() -> int:
            nonlocal revision
            bucket = await self._files.records()
            while True:
                try:
                    written = await (
                        bucket.update(job.id, payload, revision) if revision else bucket.create(job.id, payload)
                    )
                except KeyWrongLastSequenceError:
                    is_written, revision = await self._current(bucket, job, payload)
                    if is_written:
                        return revision
                else:
                    await self._files.overwrite_record(revision)
                    return written

        return await patiently(write)

    async def _current(self, bucket: KeyValue, job: Job, payload: bytes) -> tuple[bool, int]:
        """Somebody has written the record since this worker has seen it: itself, unheard, or another one. -> whether it
        is what was to be written, and its revision, on top of which it may be tried again. The reader learns
        the rest. Raises JobElsewhere."""
        try:
            entry = await bucket.get(job.id)
        except KeyNotFoundError:
            raise JobElsewhere from None
        try:
            current = _record(job.id, entry.value or b"")
        except ValueError:
            return False, entry.revision or 0  # nobody can go by it, and this worker knows the job
        if entry.value == payload or current.worker == self._own or (job.state == "cancelled" and current.active):
            return entry.value == payload, entry.revision or 0
        raise JobElsewhere

    async def _begin_reading(self) -> ConsumerConfig:
        await self._files.records()
        name = self._connection.bucket_name(RECORDS)
        return ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, filter_subject=f"$KV.{name}.>")

    def _on_begun(self, waiting: int) -> None:
        if not waiting and not self._complete.is_set():
            self._reconcile_soon()

    async def _take_message(self, message: Msg, metadata: Msg.Metadata) -> None:
        job_id, revision = message.subject.rpartition(".")[2], metadata.sequence.stream
        erased = message.headers is not None and "KV-Operation" in message.headers
        try:
            if not is_job_id(job_id):
                raise ValueError("its key is no id of a job")
            await self._learn(job_id, revision, None if erased else _record(job_id, message.data))
        except StoreError as error:
            self.trouble = str(error)
        except ValueError as error:
            self.unreadable += 1
            log.error("a record of a job is left out", key=job_id[:100], reason=str(error)[:200])
        if metadata.num_pending == 0 and not self._complete.is_set():
            self._reconcile_soon()

    async def _learn(self, job_id: str, revision: int, job: Job | None) -> None:
        """What the bucket has of a job; None: another worker has erased it. Raises StoreError."""
        async with self._learning:
            if revision > self._revisions.get(job_id, 0):
                await (self._forget(job_id) if job is None else self._take(job))
                self._revisions[job_id] = max(revision, self._revisions.get(job_id, 0))

    async def _take(self, job: Job) -> None:
        """As it was written; by this worker too, which may not have heard that it was. Raises StoreError."""
        before = self.open.get(job.id)
        try:
            if not job.active and not job.source.path:  # it may have been uploaded here, and run elsewhere
                await asyncio.to_thread(self.sources.drop, job.id)
            if before is None or before.state != job.state or job.over:
                stored = await self.read(lambda database: database.job(job.id))
                if stored != job:
                    await self.write(lambda database: database.put(job))
        finally:
            # Together: what runs here never sees the record of another worker and goes on.
            if job.over:
                self.open.pop(job.id, None)
            else:
                self.open[job.id] = job
            self._not_here.discard(job.id)
            if job.id not in self._ending:
                self.on_change(job.id)

    async def _forget(self, job_id: str) -> None:
        """Raises StoreError."""
        self.open.pop(job_id, None)
        self._not_here.discard(job_id)
        if await self.read(lambda database: database.job(job_id)) is not None:
            with contextlib.suppress(OSError):
                await super().erase(job_id)
            self.on_change(job_id)

    def _reconcile_soon(self) -> None:
        if self._reconciling is None or self._reconciling.done():
            self._reconciling = asyncio.get_running_loop().create_task(self._reconcile(), name="cluster-jobs")

    async def _reconcile(self) -> None:
        """All records have come: those that are here alone were forgotten, or have never been anywhere else."""
        while True:
            try:
                for job_id in await self.read(JobDatabase.ids):
                    if job_id not in self._revisions:
                        await self._settle(job_id)
                break
            except StoreError as error:
                if self.is_open:
                    log.warning("the jobs of this worker could not be brought into the cluster", reason=str(error))
            await asyncio.sleep(RETRY_S)
        self._complete.set()
        for job in [each for each in self.open.values() if each.state == "running" and self.owns(each)]:
            await self.release(job.id)  # it ran here when this worker was ended
        self.on_change("")

    async def _settle(self, job_id: str) -> None:
        """A job that the cluster does not know. Raises StoreError."""
        job = await self.read(lambda database: database.job(job_id))
        if job is None:
            return
        if not job.worker or (job.active and self.owns(job)):
            await self._bring(job)
        else:
            await self._forget(job_id)

    async def _bring(self, job: Job) -> None:
        """Into the cluster, from before this worker joined it. Raises StoreError."""
        for segment in await super().segments(job.id):
            await self._files.put_segment(job.id, segment)
        if job.active and not job.source.path:
            with contextlib.suppress(SourceError):  # it is gone, and the job fails for that
                await self._files.upload(job)
        source = replace(job.source, worker=self._own) if job.source.path else job.source
        job = replace(job, worker=self._own, source=source, state="queued" if job.active else job.state)
        with contextlib.suppress(JobElsewhere):
            await self._learn(job.id, await self._publish(job, 0), job)
