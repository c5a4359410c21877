"""Uploads on the disk: a thread writes them a megabyte at a time, and leaves free the space that calls need."""

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
    """The disk is full, would have less than `min_free_bytes` left, or has become read-only."""


class IncomingFile:
    """A file that is being received.

    Args:
        min_free_bytes: the space that stays free in the file system.
        path: the name of the file while it is incomplete; None for a file that disappears when it is closed or when the
            process ends.
    """

    def __init__(self, directory: Path, *, min_free_bytes: int, path: Path | None = None) -> None:
        """Create the file. Raises DiskFull, OSError."""
        self._min_free, self.path = min_free_bytes, path
        try:
            make_directory(directory)
            self.file = _made(directory, path)
        except OSError as error:
            raise disk_full(error) from None
        self.size = 0
        self._waiting = bytearray()

    async def write(self, data: bytes) -> None:
        """Append data; every megabyte is written out. Raises DiskFull, OSError."""
        self._waiting += data
        self.size += len(data)
        if len(self._waiting) >= MB:
            await self._write_out(self.put)

    async def finish(self, *, sync: bool = False) -> None:
        """Write the rest of the file. `sync`: it survives a power cut when this returns. Raises DiskFull, OSError."""
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
            # A cancelled caller closes the file. It must not do so while the thread still writes, because the number of
            # the descriptor could by then belong to another file.
            while not writing.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([writing])

    def put(self, data: bytes) -> None:
        """Write at once, in the calling thread. Raises DiskFull, OSError."""
        descriptor = self.file.fileno()
        room = os.fstatvfs(descriptor)
        if room.f_bavail * room.f_frsize - len(data) < self._min_free:
            raise DiskFull("the disk has too little free space for the file")
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]


def _made(directory: Path, path: Path | None) -> BinaryIO:
    if path is None:
        return cast(BinaryIO, tempfile.TemporaryFile(dir=directory, buffering=0))
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", buffering=0)


def disk_full(error: OSError) -> OSError | DiskFull:
    """Return DiskFull where the error means that there is no room, else the error itself."""
    if error.errno == errno.EROFS:
        return DiskFull("the disk has become read-only")
    return DiskFull("the disk is full") if error.errno in _FULL else error
