"""The database's two threads: one that writes, one that reads beside it. The event loop never waits for the disk.

A file that is found damaged at the start is set aside, and a new one with a new store id takes its place. One that
turns out to be damaged later, or that somebody has deleted or replaced, is noticed by the writer's thread before its
next job; the hub then has it written anew.
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

import structlog

from mediaworker.events.database import Database
from mediaworker.events.frame import timestamp
from mediaworker.events.schema import CallRecord
from mediaworker.events.tables import Carried, EventRow, Head
from mediaworker.storage.database_thread import DatabaseThread, StoreError, StoreUnusable, say
from mediaworker.storage.durable import make_directory, sync_directory, sync_file
from mediaworker.storage.sqlite import REASONS, Reason, UnusableDatabase, files_set_aside, make_way, open_file, save_log

__all__ = ["EventStore", "StoreError", "StoreUnusable"]

T = TypeVar("T")
FILE = "events.sqlite3"
LOG_EVERY_S = 60.0
log = structlog.get_logger()


class EventStore:
    """Calls and durable events in `<directory>/events.sqlite3`, owned by one worker at a time."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.appended = 0
        self.renewed: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        """How often a new file has taken the place of one that was not usable, by what was wrong with that."""
        self.damaged_records = 0
        """Met when something was read, since the start: one that is read twice counts twice."""
        self.set_aside: tuple[str, ...] = ()
        """Names of damaged files that lie beside the store, as of the latest look."""
        self.warning: str | None = None
        """What is to be known about the latest renewal, None when there was none."""
        self._lock: int | None = None
        self._writer: DatabaseThread[Database] | None = None
        self._reader: DatabaseThread[Database] | None = None
        self._carried: Carried | None = None
        """Of a file that is closed already, while no new one could be opened."""
        self._unsynced = False
        self._unusable: StoreUnusable | None = None
        """What the writer met since the latest renewal."""
        self._logged_s = -LOG_EVERY_S

    async def start(self) -> Head:
        """Open, migrate, and say where the store stands. Raises StoreError."""
        try:
            make_directory(self.directory)
            self._lock = _take(self.directory / "lock")
            self._writer = await DatabaseThread.open("events-writer", self._open)
            self._reader = await DatabaseThread.open("events-reader", lambda: self._made(self._real, read_only=True))
            return await self.write(Database.head)
        except (OSError, sqlite3.Error) as error:
            await self.stop()
            raise StoreError(f"{self.directory}: {say(error)}") from error

    def _open(self) -> Database:
        database, damage = open_file(self._real, self._made, Database.head)
        if damage is not None:
            self._note_renewal("damaged", f"{damage}: calls and events from before are not in the new store")
        self._note_set_aside()
        sync_directory(self.directory)
        return database

    def _made(self, path: Path, *, read_only: bool = False) -> Database:
        return Database(path, read_only=read_only, on_damage=self._on_damage)

    async def stop(self) -> None:
        # The writer last: whoever closes last takes the log into the file, and a reader may not.
        for opened in (self._reader, self._writer):
            if opened is not None:
                with contextlib.suppress(sqlite3.Error):
                    await opened.close()
        self._writer = self._reader = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Delete the file of a store that is stopped: it is a copy of something else. Raises StoreError."""
        try:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._real}{suffix}").unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.directory}: {say(error)}") from error

    async def append(self, rows: Iterable[EventRow], records: Iterable[CallRecord], floor: int) -> None:
        """Committed when it returns. Raises StoreError: nothing of it was written."""
        rows = tuple(rows)
        await self.write(lambda database: database.append(rows, records, floor))
        self.appended += len(rows)

    async def write(self, job: Callable[[Database], T]) -> T:
        """Run `job` on the writer's thread, behind what was asked before. Raises StoreError."""
        try:
            return await self._run(job)
        finally:
            self._unsynced = True

    async def _run(self, job: Callable[[Database], T]) -> T:
        if self._unusable is not None:
            raise self._unusable  # what was still written to a file that is given up would be lost with it
        try:
            return await _opened(self._writer).run(job)
        except StoreUnusable as error:
            self._unusable = error
            raise

    async def sync(self) -> None:
        """What has been committed survives a power cut when this returns. The writer does not wait for it: the log is
        synced by another thread, and holds no lock that would be lost with it. Raises StoreError."""
        if not self._unsynced:
            return
        self._unsynced = False
        try:
            with contextlib.suppress(FileNotFoundError):
                await asyncio.to_thread(sync_file, f"{self._real}-wal")
        except OSError as error:
            self._unsynced = True
            raise StoreError(f"the disk does not keep what was written ({say(error)})") from error

    async def read(self, query: Callable[[Database], T]) -> T:
        """Run `query` on the reader's thread; it sees what was committed before. Raises StoreError."""
        try:
            return await _opened(self._reader).run(query)
        except StoreUnusable as error:
            # What is damaged in the past keeps nobody from writing down what happens now.
            self._on_damage(str(error))
            raise

    async def check(self) -> None:
        """Raises StoreUnusable when the store has to be written anew."""
        await self._run(lambda database: self._note_set_aside())

    async def renew(self, error: UnusableDatabase, store_id: str, records: Collection[CallRecord], floor: int) -> bool:
        """Go on in a new file of the same id, with the events of these calls as far as the old one still gives them.

        `floor`: row of the latest event that was in the old one. Whether anything is missing: when only the log was
        lost, nothing is. Raises StoreError; it is then to be tried again.
        """
        if self._reader is not None:
            with contextlib.suppress(sqlite3.Error):
                await self._reader.close()
            self._reader = None
        whole = False

        def renewed(old: Database | None) -> Database:
            nonlocal whole
            whole = save_log(error, old)
            if old is not None and not whole:
                self._carried = None
                with contextlib.suppress(sqlite3.Error):
                    self._carried = old.carry([record.call_id for record in records])
            make_directory(self.directory)
            self._lock_again()
            return self._made(self._real) if whole else self._anew(old, store_id, records, floor)

        try:
            await _opened(self._writer).reopen(renewed)
            self._reader = await DatabaseThread.open("events-reader", lambda: self._made(self._real, read_only=True))
        except (OSError, sqlite3.Error) as failed:
            raise StoreError(say(failed)) from failed
        self._carried = self._unusable = None
        lost = "nothing is missing" if whole else "a new store was begun, and cursors from before have expired"
        self._note_renewal(error.reason, f"{error}; {lost}")
        return not whole

    def _anew(self, old: Database | None, store_id: str, records: Collection[CallRecord], floor: int) -> Database:
        make_way(self._real, old)
        database = self._made(self._real)
        try:
            database.restore(store_id, self._carried or Carried([], []), records, floor)
        except BaseException:
            database.close()
            raise
        self._note_set_aside()
        sync_directory(self.directory)
        return database

    @property
    def _real(self) -> Path:
        return Path(os.path.realpath(self.directory / FILE))

    def _lock_again(self) -> None:
        """The folder may have been deleted with its lock. Raises OSError when another worker has taken it since."""
        path = self.directory / "lock"
        with contextlib.suppress(FileNotFoundError):
            if self._lock is not None and os.path.samestat(os.fstat(self._lock), os.stat(path)):
                return
        fresh = _take(path)
        if self._lock is not None:
            os.close(self._lock)
        self._lock = fresh

    def _note_set_aside(self) -> None:
        with contextlib.suppress(OSError):
            self.set_aside = tuple(path.name for path in files_set_aside(self._real))

    def _note_renewal(self, reason: Reason, text: str) -> None:
        self.renewed[reason] += 1
        self.warning = f"{timestamp(time.time())}: {text}"
        log.error("the event store was written anew", reason=text)

    def _on_damage(self, what: str) -> None:
        self.damaged_records += 1
        if time.monotonic() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = time.monotonic()
            log.error("the event store is damaged", what=what, damaged_so_far=self.damaged_records)


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
