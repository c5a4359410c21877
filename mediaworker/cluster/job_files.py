"""The data of jobs in JetStream: records and segments in two buckets, and uploads in an object store."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import BinaryIO, TypeVar

import msgspec
from msgspec.structs import replace
from nats.js.api import Header, ObjectInfo, ObjectMetaOptions
from nats.js.errors import DigestMismatchError, NotFoundError, ObjectNotFoundError
from nats.js.kv import KeyValue

from config.process.tasks import cancellable
from mediaworker.cluster.connection import TROUBLE, NatsConnection, why
from mediaworker.cluster.erasure import overwrite, overwrite_old, overwrite_one
from mediaworker.cluster.reader import PATIENCE_S, messages
from mediaworker.files.disk import DiskFull, IncomingFile
from mediaworker.files.segments import FileSegment
from mediaworker.jobs.record import Job
from mediaworker.jobs.sources import SourceError, Sources
from mediaworker.storage.database_thread import StoreError

T = TypeVar("T")
RECORDS, SEGMENTS, UPLOADS = "JOBS", "JOB_SEGMENTS", "JOB_UPLOADS"
HISTORY = 64
"""The number of values that the buckets keep per key, the most that NATS allows. Values that NATS drops by itself would
not be overwritten."""
AGAIN_S = 0.5
CHUNK_BYTES = 128 * 1024
FETCH_S, FETCH_BYTES_PER_S = 30.0, 2**20
"""The timeout of a download: FETCH_S plus the upload's size / FETCH_BYTES_PER_S."""

_segment, _encoder = msgspec.json.Decoder(FileSegment), msgspec.json.Encoder()


@contextlib.asynccontextmanager
async def asking() -> AsyncIterator[None]:
    """Turn the errors of JetStream into StoreError."""
    try:
        with cancellable():
            yield
    except TROUBLE as error:
        raise StoreError(f"JetStream: {why(error)}") from error


async def patiently(do: Callable[[], Awaitable[T]]) -> T:
    """Retry an idempotent operation until it succeeds, for at most PATIENCE_S. Raises StoreError."""
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
    """The buckets and the object store of the cluster's jobs. Every method raises StoreError, except as stated."""

    def __init__(self, connection: NatsConnection, sources: Sources) -> None:
        self._connection, self._sources = connection, sources
        self.record_stream = f"KV_{connection.bucket_name(RECORDS)}"
        self._uploads = connection.bucket_name(UPLOADS)
        self._objects = f"OBJ_{self._uploads}"

    async def records(self) -> KeyValue:
        """The bucket of records. Raises the errors of `TROUBLE`."""
        return await self._connection.bucket(RECORDS, history=HISTORY)

    async def overwrite_record(self, revision: int) -> None:
        """Overwrite a superseded record. If that fails, it is overwritten when the job is erased."""
        with contextlib.suppress(*TROUBLE):
            await overwrite_one(self._connection, self.record_stream, revision)

    async def erase_record(self, job_id: str) -> None:
        async with asking():
            await (await self.records()).delete(job_id)  # first, so that no worker updates an earlier revision
            subject = f"$KV.{self._connection.bucket_name(RECORDS)}.{job_id}"
            await overwrite_old(self._connection, self.record_stream, subject)

    async def segments(self, job_id: str) -> list[FileSegment]:
        found: dict[int, FileSegment] = {}
        async with asking():
            stream, subject = await self._segments_of(job_id)
            async with aclosing(messages(self._connection, stream, subject)) as stored:
                async for message in stored:
                    with contextlib.suppress(ValueError):
                        segment = _segment.decode(message.data)
                        found[segment.index] = segment  # a segment that was put again follows its predecessor
        return [found[index] for index in sorted(found)]

    async def _segments_of(self, job_id: str) -> tuple[str, str]:
        """The stream and the subject of a job's segments."""
        await self._connection.bucket(SEGMENTS, history=HISTORY)
        name = self._connection.bucket_name(SEGMENTS)
        return f"KV_{name}", f"$KV.{name}.{job_id}.*"

    async def put_segment(self, job_id: str, segment: FileSegment) -> None:
        async def put() -> None:
            bucket = await self._connection.bucket(SEGMENTS, history=HISTORY)
            await bucket.put(f"{job_id}.{segment.index}", _encoder.encode(segment))

        await patiently(put)

    async def erase_segments(self, job_id: str) -> None:
        async with asking():
            await overwrite(self._connection, *await self._segments_of(job_id))

    async def uploads(self) -> set[str]:
        """The ids of the jobs that have an upload."""
        async with asking():
            objects = await self._connection.object_store(UPLOADS)
            with contextlib.suppress(NotFoundError):
                return {str(each.name) for each in await objects.list(ignore_deletes=True)}
            return set()

    async def parts(self) -> set[str]:
        """The ids of the jobs with parts of an upload in the store, complete or not."""
        async with asking():
            await self._connection.object_store(UPLOADS)
            info = await self._connection.js.stream_info(self._objects, subjects_filter=self._parts_of("*"))
            return {subject.rpartition(".")[2] for subject in info.state.subjects or {}}

    def _parts_of(self, nuid: str) -> str:
        return f"$O.{self._uploads}.C.{nuid}"

    async def upload(self, job: Job) -> None:
        """Copy a job's uploaded file into the object store. Raises SourceError, StoreError."""
        file = os.fdopen(await asyncio.to_thread(self._sources.open, job), "rb")
        with file:
            try:
                async with asking():
                    await self._upload(job.id, file)
            except Exception:
                with contextlib.suppress(StoreError):  # the sweep erases the parts later
                    await self.erase_upload(job.id)
                raise

    async def _upload(self, job_id: str, file: BinaryIO) -> None:
        """Store an object as NATS's ADR-20 defines it, with the job's id as the name of its parts.

        `ObjectStore.put` gives the parts a random name, which would be unknown after a kill between two parts.
        """
        await self._connection.object_store(UPLOADS)
        js = self._connection.js
        await overwrite(self._connection, self._objects, self._parts_of(job_id))
        digest, size, chunks = hashlib.sha256(), 0, 0
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            digest.update(chunk)
            await js.publish(self._parts_of(job_id), chunk)
            size, chunks = size + len(chunk), chunks + 1
        info = ObjectInfo(
            name=job_id,
            bucket=self._uploads,
            nuid=job_id,
            size=size,
            chunks=chunks,
            digest=_digest(digest.digest()),
            options=ObjectMetaOptions(max_chunk_size=CHUNK_BYTES),
        )
        subject = f"$O.{info.bucket}.M.{base64.urlsafe_b64encode(job_id.encode()).decode()}"
        await js.publish(subject, json.dumps(info.as_dict()).encode(), headers={Header.ROLLUP.value: "sub"})

    async def erase_upload(self, job_id: str) -> None:
        async with asking():
            objects = await self._connection.object_store(UPLOADS)
            with contextlib.suppress(ObjectNotFoundError):
                # Older versions of the worker gave the parts a random name.
                if (nuid := (await objects.get_info(job_id)).nuid) != job_id:
                    await overwrite(self._connection, self._objects, self._parts_of(nuid))
            await overwrite(self._connection, self._objects, self._parts_of(job_id))
            with contextlib.suppress(ObjectNotFoundError):
                await objects.delete(job_id)

    async def fetch(self, job: Job) -> None:
        """Download a job's upload, unless this worker has it. Raises OSError, SourceError, StoreError."""
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
        """Download the parts of an object as NATS's ADR-20 defines them.

        `ObjectStore.get` is not used, because it leaves its consumer behind when it is cancelled. Raises
        DigestMismatchError if the upload is erased meanwhile.
        """
        info = await (await self._connection.object_store(UPLOADS)).get_info(job_id)
        digest = hashlib.sha256()
        async with aclosing(messages(self._connection, self._objects, self._parts_of(info.nuid))) as parts:
            async for part in parts:
                digest.update(part.data)
                await incoming.write(part.data)
        if info.digest != _digest(digest.digest()):
            raise DigestMismatchError


def _digest(digest: bytes) -> str:
    return f"SHA-256={base64.urlsafe_b64encode(digest).decode()}"
