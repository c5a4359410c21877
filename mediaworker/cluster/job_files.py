"""What jobs consist of in JetStream beside their records: uploads in an object store, and stretches in a bucket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import msgspec
from msgspec.structs import replace
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import DigestMismatchError, NotFoundError, ObjectNotFoundError

from config.tasks import cancellable
from mediaworker.cluster.connection import TROUBLE, NatsConnection, why
from mediaworker.files.disk import DiskFull, IncomingFile
from mediaworker.files.segments import FileSegment
from mediaworker.jobs.record import Job
from mediaworker.jobs.sources import SourceError, Sources
from mediaworker.storage.database_thread import StoreError

T = TypeVar("T")
SEGMENTS, UPLOADS = "JOB_SEGMENTS", "JOB_UPLOADS"
PATIENCE_S = 15.0
"""A stream without a leader comes back within this; then a job is put off as with a full disk."""
AGAIN_S = 0.5
AT_ONCE = 64
"""Messages; those of uploads have 128 kB."""
FETCH_S, FETCH_BYTES_PER_S = 30.0, 2**20
"""An upload that is not here after the one and its size by the other is asked for again."""

_segment, _encoder = msgspec.json.Decoder(FileSegment), msgspec.json.Encoder()


@contextlib.asynccontextmanager
async def asking() -> AsyncIterator[None]:
    """JetStream's troubles are those of the store. Raises StoreError."""
    try:
        with cancellable():
            yield
    except TROUBLE as error:
        raise StoreError(f"JetStream: {why(error)}") from error


async def patiently(do: Callable[[], Awaitable[T]]) -> T:
    """What may be done twice, until it is done. Raises StoreError."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + PATIENCE_S
    while True:
        try:
            async with asking():
                return await do()
        except StoreError:
            if loop.time() >= until_s:
                raise
        await asyncio.sleep(AGAIN_S)


class JobFiles:
    """See the module. Everything raises StoreError."""

    def __init__(self, connection: NatsConnection, sources: Sources) -> None:
        self._connection, self._sources = connection, sources

    async def segments(self, job_id: str) -> list[FileSegment]:
        found: list[FileSegment] = []
        async with asking():
            await self._connection.bucket(SEGMENTS)
            name = self._connection.bucket_name(SEGMENTS)
            async with aclosing(self._messages(f"KV_{name}", f"$KV.{name}.{job_id}.*")) as messages:
                async for message in messages:
                    with contextlib.suppress(ValueError):
                        found.append(_segment.decode(message.data))
        return sorted(found, key=lambda segment: segment.index)

    async def _messages(self, stream: str, subject: str) -> AsyncGenerator[Msg, None]:
        """What the stream has of it, in its order."""
        js = self._connection.js
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.NONE,
            num_replicas=1,
            mem_storage=True,
            inactive_threshold=2 * PATIENCE_S,
        )
        pulled = await js.pull_subscribe(subject, stream=stream, config=config)
        try:
            consumer = await pulled.consumer_info()
            left = consumer.num_pending or 0
            while left > 0:
                messages = await pulled.fetch(min(left, AT_ONCE), timeout=PATIENCE_S)
                if not messages:  # the consumer has gone with its server, or has sent them to nobody
                    raise TimeoutError
                left -= len(messages)
                for message in messages:
                    yield message
            with contextlib.suppress(NotFoundError):
                await js.delete_consumer(stream, consumer.name)
        finally:
            await pulled.unsubscribe()

    async def put_segment(self, job_id: str, segment: FileSegment) -> None:
        async def put() -> None:
            await (await self._connection.bucket(SEGMENTS)).put(f"{job_id}.{segment.index}", _encoder.encode(segment))

        await patiently(put)

    async def erase_segments(self, job_id: str) -> None:
        async with asking():
            await self._connection.bucket(SEGMENTS)
            name = self._connection.bucket_name(SEGMENTS)
            await self._connection.js.purge_stream(f"KV_{name}", subject=f"$KV.{name}.{job_id}.*")

    async def uploads(self) -> set[str]:
        """Ids of the jobs that have one."""
        async with asking():
            objects = await self._connection.object_store(UPLOADS)
            with contextlib.suppress(NotFoundError):
                return {str(each.name) for each in await objects.list(ignore_deletes=True)}
            return set()

    async def upload(self, job: Job) -> None:
        """Raises SourceError too."""
        file = os.fdopen(await asyncio.to_thread(self._sources.open, job), "rb")
        with file:
            async with asking():
                await (await self._connection.object_store(UPLOADS)).put(job.id, file)

    async def erase_upload(self, job_id: str) -> None:
        async with asking():
            with contextlib.suppress(ObjectNotFoundError):
                await (await self._connection.object_store(UPLOADS)).delete(job_id)

    async def fetch(self, job: Job) -> None:
        """Its upload is among this worker's own. Raises OSError, SourceError too."""
        if job.id in await asyncio.to_thread(self._sources.uploads):
            return
        limit_s = FETCH_S + job.source.bytes / FETCH_BYTES_PER_S
        incoming = await asyncio.to_thread(self._sources.incoming, job.id)
        try:
            async with asking(), asyncio.timeout(limit_s):
                await self._download(job.id, incoming)
            await incoming.finish(sync=True)
            await asyncio.to_thread(self._sources.keep, replace(job, state="queued"))
        except BaseException as error:
            await asyncio.to_thread(self._sources.drop, job.id)
            if isinstance(error, DiskFull):
                raise OSError(errno.ENOSPC, str(error)) from None
            if isinstance(error.__cause__, ObjectNotFoundError):
                raise SourceError("the upload is gone") from None
            raise
        finally:
            incoming.close()

    async def _download(self, job_id: str, incoming: IncomingFile) -> None:
        """The parts of an object as NATS's ADR-20 lays them down. `ObjectStore.get` leaves its consumer behind when it
        is cancelled. Raises DigestMismatchError: somebody has erased it meanwhile."""
        info = await (await self._connection.object_store(UPLOADS)).get_info(job_id)
        name, digest = self._connection.bucket_name(UPLOADS), hashlib.sha256()
        async with aclosing(self._messages(f"OBJ_{name}", f"$O.{name}.C.{info.nuid}")) as parts:
            async for part in parts:
                digest.update(part.data)
                await incoming.write(part.data)
        if info.digest != f"SHA-256={base64.urlsafe_b64encode(digest.digest()).decode()}":
            raise DigestMismatchError
