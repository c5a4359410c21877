"""The jobs of all workers: any worker can run, show, cancel and erase any job.

A job's record is a key in a JetStream bucket. An update is accepted only on top of the latest revision, so of two
competing workers one gets the job. (Several servers of NATS 2.9 may accept two updates at once; then the later one
counts.) The job's segments are keys of another bucket, and its upload is in an object store. Every worker mirrors all
records in its own job store. Jobs from before a worker joined the cluster are published when it joins.
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
from config.process.tasks import end_tasks, within
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
"""How long a new job waits, at a worker that has just joined, until the worker has read all records."""
log = structlog.get_logger("cluster")

_job, _encoder = msgspec.json.Decoder(Job), msgspec.json.Encoder()


def _record(key: str, payload: bytes) -> Job:
    """Decode a record, and check its id: any client of NATS may write one, and it names a file. Raises ValueError."""
    job = _job.decode(payload)
    if job.id != key or not is_job_id(key):
        raise ValueError("its id is another one than its key, or none")
    return job


class ClusterJobStore(JobStore):
    """The cluster's job store. The owner calls `join` on each connection to NATS; before that, no job is accepted."""

    def __init__(
        self, connection: NatsConnection, settings: Settings, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(settings, clock=clock)
        self.taken_over = self.unreadable = 0
        self._connection, self._own = connection, ""
        self._files = JobFiles(connection, self.sources)
        self._revisions: dict[str, int] = {}
        """Job id → the revision of its record that was read or written last."""
        self._learning = asyncio.Lock()
        self._not_here: set[str] = set()
        """Jobs whose source path does not exist at this worker."""
        self._ending = set[str]()
        """Jobs that this worker is ending. `on_change` is not called for them, since it would end their runs."""
        self._reader: StreamReader | None = None
        self._complete = asyncio.Event()
        """Set once this worker has read all records."""
        self._reconciling: asyncio.Task[None] | None = None

    def join(self, own: str) -> None:
        """Start or restart reading the records. `own` is this worker's id in the cluster."""
        self._own = own
        if self._reader is None:
            stream = self._files.record_stream
            self._reader = StreamReader(
                self._connection, stream, begin=self._begin_reading, begun=self._on_begun, take=self._on_message
            )
        self._reader.start()

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.stop()
        await end_tasks(self._reconciling)
        await super().close()

    async def _begin(self) -> None:
        """Read no local records: all come from the bucket."""
        await asyncio.to_thread(self.sources.erase_incomplete)
        if self._reader is not None:  # `join` was called before this store was open
            self._reader.start()

    # -- operations of `JobStore`, on the bucket ----------------------------------------------------------------------

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
            with contextlib.suppress(JobElsewhere):  # the bucket has the job, and another worker has claimed it
                await self.put(job)
        except StoreError:
            if not job.source.path:
                with contextlib.suppress(StoreError):
                    await self._files.erase_upload(job.id)
            raise

    async def put(self, job: Job, segment: FileSegment | None = None, *, anew: bool = False) -> None:
        """Write a new version of a job's record on top of the one known here.

        Raises JobElsewhere if another worker has changed the record meanwhile, and StoreError."""
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
            # The bucket has the progress. The local copy only has to find the job by its state.
            if known is None or known.state != job.state or not job.active:
                await super().put(job)

    async def _until_known(self) -> None:
        """Wait until all records have been read. Raises StoreError after KNOWN_S."""
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
        self._revisions.clear()  # so that the reader stores the ended jobs again
        if self._reader is not None:
            self._reader.start()
        return lost

    async def release(self, job_id: str) -> None:
        job = self.open.get(job_id)
        if job is not None and job.state == "running" and self.owns(job):
            job = replace(job, state="queued")
            try:
                await self.put(job)
            except StoreError as error:  # the record still says that the job runs here, so it waits for this worker
                self.open[job_id], self.trouble = job, str(error)
            except JobElsewhere:
                pass

    async def find(self, job_id: str) -> Job | None:
        """The job, from the bucket if its record has not been read yet. Raises StoreError."""
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
                with contextlib.suppress(StoreError):  # the sweep retries
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
        """Erase stale uploads of this worker and of the object store.

        In the object store an upload is stale if its job has ended, or if it has no job after a day: then the worker
        that was sending it has been killed."""
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
        """The ids of the other workers that run a job or have to post its webhook."""
        return {job.worker for job in self.open.values() if job.state != "queued"} - {self._own}

    async def take_over(self, worker: str) -> None:
        """Queue the jobs of a lost worker for any worker, and post the webhooks that it owed."""
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
        """Write the record on top of `revision` (0: none), return the new one. Raises StoreError, JobElsewhere."""
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
        """Read the record after a conflict: another worker wrote it, or this one did and missed the acknowledgement.

        Returns whether the record equals the wanted one, and its revision for another attempt. Raises JobElsewhere."""
        try:
            entry = await bucket.get(job.id)
        except KeyNotFoundError:
            raise JobElsewhere from None
        try:
            current = _record(job.id, entry.value or b"")
        except ValueError:
            return False, entry.revision or 0  # the record is unreadable, and this worker knows the job
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

    async def _on_message(self, message: Msg, metadata: Msg.Metadata) -> None:
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
        """Apply a record from the bucket; None if another worker has erased the job. Raises StoreError."""
        async with self._learning:
            if revision > self._revisions.get(job_id, 0):
                await (self._forget(job_id) if job is None else self._apply(job))
                self._revisions[job_id] = max(revision, self._revisions.get(job_id, 0))

    async def _apply(self, job: Job) -> None:
        """Store a record that any worker wrote; this worker may have missed the acknowledgement. Raises StoreError."""
        before = self.open.get(job.id)
        try:
            if not job.active and not job.source.path:  # it may have been uploaded here and run elsewhere
                await asyncio.to_thread(self.sources.drop, job.id)
            if before is None or before.state != job.state or job.over:
                stored = await self.read(lambda database: database.job(job.id))
                if stored != job:
                    await self.write(lambda database: database.put(job))
        finally:
            # Both change without an await between them: a run here must not see another worker's record and go on.
            if job.over:
                self.open.pop(job.id, None)
            else:
                self.open[job.id] = job
            self._not_here.discard(job.id)
            if job.id not in self._ending:
                self.on_change(job.id)

    async def _forget(self, job_id: str) -> None:
        """Remove an erased job from this worker's store. Raises StoreError."""
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
        """Settle the jobs that only this worker has: they were erased elsewhere, or are older than its membership."""
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
            await self.release(job.id)  # it was running here when this worker ended
        self.on_change("")

    async def _settle(self, job_id: str) -> None:
        """Publish or erase a job that the cluster does not know. Raises StoreError."""
        job = await self.read(lambda database: database.job(job_id))
        if job is None:
            return
        if not job.worker or (job.active and self.owns(job)):
            await self._bring(job)
        else:
            await self._forget(job_id)

    async def _bring(self, job: Job) -> None:
        """Publish a job from before this worker joined the cluster. Raises StoreError."""
        for segment in await super().segments(job.id):
            await self._files.put_segment(job.id, segment)
        if job.active and not job.source.path:
            with contextlib.suppress(SourceError):  # the file is missing, for which the job will fail
                await self._files.upload(job)
        source = replace(job.source, worker=self._own) if job.source.path else job.source
        job = replace(job, worker=self._own, source=source, state="queued" if job.active else job.state)
        with contextlib.suppress(JobElsewhere):
            await self._learn(job.id, await self._publish(job, 0), job)
