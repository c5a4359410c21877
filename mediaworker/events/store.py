"""The database's two threads: one that writes, one that reads beside it. The event loop never waits for the disk."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from mediaworker.database_thread import DatabaseThread, StoreError, say
from mediaworker.events.database import Database, Head, Row
from mediaworker.events.schema import CallRecord

__all__ = ["EventStore", "StoreError"]

T = TypeVar("T")
FILE = "events.sqlite3"


class EventStore:
    """Calls and durable events in `<directory>/events.sqlite3`, owned by one worker at a time."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.appended = 0
        self._lock: int | None = None
        self._writer: DatabaseThread[Database] | None = None
        self._reader: DatabaseThread[Database] | None = None

    async def start(self) -> Head:
        """Open, migrate, and say where the store stands. Raises StoreError."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _take(self.directory / "lock")
            path = self.directory / FILE
            self._writer = await DatabaseThread.open("events-writer", lambda: Database(path, read_only=False))
            self._reader = await DatabaseThread.open("events-reader", lambda: Database(path, read_only=True))
            return await self.write(Database.head)
        except (OSError, sqlite3.Error) as error:
            await self.stop()
            raise StoreError(f"{self.directory}: {say(error)}") from error

    async def stop(self) -> None:
        # The writer last: whoever closes last takes the log into the file, and a reader may not.
        for opened in (self._reader, self._writer):
            if opened is not None:
                await opened.close()
        self._writer = self._reader = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def append(self, rows: Iterable[Row], records: Iterable[CallRecord], floor: int) -> None:
        """Committed when it returns. Raises StoreError: nothing of it was written."""
        rows = tuple(rows)
        await self.write(lambda database: database.append(rows, records, floor))
        self.appended += len(rows)

    async def write(self, job: Callable[[Database], T]) -> T:
        """Run `job` on the writer's thread, behind what was asked before. Raises StoreError."""
        return await _opened(self._writer).run(job)

    async def read(self, query: Callable[[Database], T]) -> T:
        """Run `query` on the reader's thread; it sees what was committed before. Raises StoreError."""
        return await _opened(self._reader).run(query)


def _opened(thread: DatabaseThread[Database] | None) -> DatabaseThread[Database]:
    if thread is None:
        raise StoreError("the event store is closed")
    return thread


def _take(path: Path) -> int:
    """Two workers on one store would hand out the same cursors. The lock ends with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OSError("another worker is using this data_dir") from None
    return descriptor
