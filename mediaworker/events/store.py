"""The event store: one thread writes to the database and another reads it, so the event loop never waits for the disk.

When the file is lost, its replacement keeps the store id. The cursors of subscribers that had seen every event thus
stay valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from mediaworker.events.database import Database
from mediaworker.events.frame import timestamp
from mediaworker.events.schema import CallRecord
from mediaworker.events.tables import Carried, EventRow, Head
from mediaworker.storage.database_thread import DatabaseThread, StoreError, StoreUnusable, reason_of
from mediaworker.storage.durable import sync_file
from mediaworker.storage.renewable import RenewableStore
from mediaworker.storage.sqlite import SUFFIXES, UnusableDatabase

__all__ = ["EventStore", "StoreError", "StoreUnusable"]

T = TypeVar("T")
FILE = "events.sqlite3"


class EventStore(RenewableStore[Database]):
    """Calls and durable events in `<directory>/events.sqlite3`, owned by one worker at a time."""

    KIND = "event store"
    RECORDS = "events and call records"
    THREAD = "events-writer"
    LOST = "calls and events from before are not in the new store"
    BEGUN = "a new store was begun, and cursors from before have expired"

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        super().__init__(self.directory / FILE, Database, lambda: timestamp(time.time()))
        self.appended = 0
        self._lock: int | None = None
        self._reader: DatabaseThread[Database] | None = None
        self._carried = Carried([], [])
        """The events saved from a lost file that is closed already, while no new file could be opened."""
        self._unsynced = False

    async def start(self) -> Head:
        """Open and migrate the file; return where the store stands. Raises StoreError."""
        try:
            await self._open()
            return await self.write(Database.head)
        except (OSError, sqlite3.Error) as error:
            await self.stop()
            raise StoreError(f"{self.directory}: {reason_of(error)}") from error

    def _prepare(self) -> None:
        super()._prepare()
        self._lock_again()

    async def _on_opened(self) -> None:
        self._reader = await DatabaseThread.open("events-reader", lambda: self._make(self.file, read_only=True))

    async def stop(self) -> None:
        # The writer closes last: the last connection checkpoints the log into the file, and a reader may not write.
        await self._close_reader()
        await self.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _close_reader(self) -> None:
        if self._reader is not None:
            with contextlib.suppress(sqlite3.Error):
                await self._reader.close()
            self._reader = None

    def discard(self) -> None:
        """Delete the file of a stopped store that is only a copy of other stores' events. Raises StoreError."""
        try:
            for suffix in SUFFIXES:
                Path(f"{self.file}{suffix}").unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.directory}: {reason_of(error)}") from error

    async def append(self, rows: Iterable[EventRow], records: Iterable[CallRecord], floor: int) -> None:
        """Commit rows and records; they are committed when this returns. Raises StoreError: nothing was written."""
        rows = tuple(rows)
        await self.write(lambda database: database.append(rows, records, floor))
        self.appended += len(rows)

    async def write(self, job: Callable[[Database], T]) -> T:
        try:
            return await super().write(job)
        finally:
            self._unsynced = True

    async def read(self, query: Callable[[Database], T]) -> T:
        return await self._ask(self._reader, query)

    async def sync(self) -> None:
        """Make every commit so far survive a power cut. Raises StoreError.

        The writer does not wait for it: another thread opens and syncs the log, which holds none of SQLite's locks.
        Closing a second descriptor of the database file itself would drop them (POSIX locks belong to the process).
        """
        if not self._unsynced:
            return
        self._unsynced = False
        try:
            with contextlib.suppress(FileNotFoundError):
                await asyncio.to_thread(sync_file, f"{self.file}-wal")
        except OSError as error:
            self._unsynced = True
            raise StoreError(f"the log could not be synced to the disk ({reason_of(error)})") from error

    async def renew(self, error: UnusableDatabase, store_id: str, records: Collection[CallRecord], floor: int) -> bool:
        """Go on in a new file of the same id, with those events of these calls that the old file can still return.

        `floor`: the row of the latest event in the old file. Returns whether events are missing, which they are not
        when only the log was lost. Raises StoreError; the caller then tries again.
        """
        await self._close_reader()

        def carry(old: Database) -> None:
            self._carried = Carried([], [])
            with contextlib.suppress(sqlite3.Error):
                self._carried = old.carry([record.call_id for record in records])

        whole = await self._renew(error, carry, lambda new: new.restore(store_id, self._carried, records, floor))
        self._carried = Carried([], [])
        return not whole

    def _lock_again(self) -> None:
        """Lock the folder again, because it may have been deleted together with its lock file. Raises OSError when
        another worker has locked it since."""
        path = self.directory / "lock"
        with contextlib.suppress(FileNotFoundError):
            if self._lock is not None and os.path.samestat(os.fstat(self._lock), os.stat(path)):
                return
        fresh = _lock_file(path)
        if self._lock is not None:
            os.close(self._lock)
        self._lock = fresh


def _lock_file(path: Path) -> int:
    """Lock the store for this process until it ends: two workers on one store would hand out the same cursors."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OSError("another worker is using this data_dir") from None
    return descriptor
