"""Uploads on the disk: written a megabyte at a time beside the event loop, and never into the room that calls need."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from mediaworker.errors import MediaworkerError
from mediaworker.storage.durable import make_directory

MB = 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(MediaworkerError):
    """There is no room for it, it would take the room of calls, or the disk has become read-only."""


class IncomingFile:
    """A file that is being received.

    Args:
        min_free_bytes: of the file system, that stay free.
        path: its name while it is incomplete; None for one that is gone when it is closed, or with the process.
    """

    def __init__(self, directory: Path, *, min_free_bytes: int, path: Path | None = None) -> None:
        """Raises DiskFull, OSError."""
        self._min_free, self.path = min_free_bytes, path
        try:
            make_directory(directory)
            self.file = _made(directory, path)
        except OSError as error:
            raise disk_full(error) from None
        self.size = 0
        self._waiting = bytearray()

    async def write(self, data: bytes) -> None:
        """Raises DiskFull, OSError."""
        self._waiting += data
        self.size += len(data)
        if len(self._waiting) >= MB:
            await self._write_out(self.put)

    async def finish(self, *, sync: bool = False) -> None:
        """All of it is here. `sync`: on the disk when this returns. Raises DiskFull, OSError."""
        await self._write_out(self.put)
        if sync:
            await self._write_out(lambda data: os.fsync(self.file.fileno()))

    def close(self) -> None:
        self.file.close()

    async def _write_out(self, do: Callable[[bytes], None]) -> None:
        data, self._waiting = bytes(self._waiting), bytearray()
        writing = asyncio.ensure_future(asyncio.to_thread(do, data))
        try:
            await asyncio.shield(writing)
        except OSError as error:
            raise disk_full(error) from None
        finally:
            # The file is not closed under the thread: its descriptor could be that of another one by then.
            while not writing.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([writing])

    def put(self, data: bytes) -> None:
        """At once, and blocking. Raises DiskFull, OSError."""
        descriptor = self.file.fileno()
        room = os.fstatvfs(descriptor)
        if room.f_bavail * room.f_frsize - len(data) < self._min_free:
            raise DiskFull("the disk is too full to take the file")
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]


def _made(directory: Path, path: Path | None) -> BinaryIO:
    if path is None:
        return cast(BinaryIO, tempfile.TemporaryFile(dir=directory, buffering=0))
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", buffering=0)


def disk_full(error: OSError) -> OSError | DiskFull:
    """What it means for whoever sends a file."""
    if error.errno == errno.EROFS:
        return DiskFull("the disk has become read-only")
    return DiskFull("the disk is full") if error.errno in _FULL else error
