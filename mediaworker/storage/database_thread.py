"""Runs a SQLite connection on a thread of its own, so that the event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import structlog

from mediaworker.errors import MediaworkerError
from mediaworker.storage.sqlite import SqliteFile, UnusableDatabase, is_read_only, unusable

log = structlog.get_logger()
T = TypeVar("T")
D = TypeVar("D", bound=SqliteFile)


class StoreError(MediaworkerError):
    """A store cannot be opened, read or written; the message is the reason."""


class StoreUnusable(StoreError):
    """The store's file is damaged, deleted or replaced, so the store has to begin a new one."""

    def __init__(self, error: UnusableDatabase) -> None:
        self.error = error
        super().__init__(str(error))


class DatabaseThread(Generic[D]):
    """One connection and its thread. Jobs run on that thread only, in the order of their calls."""

    def __init__(self, thread: ThreadPoolExecutor, database: D) -> None:
        self._thread = thread
        self._database: D | None = database

    @classmethod
    async def open(cls, name: str, make: Callable[[], D]) -> DatabaseThread[D]:
        """Start a thread and make its database there. Raises what `make` raises."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        try:
            return cls(thread, await asyncio.get_running_loop().run_in_executor(thread, make))
        except BaseException:
            thread.shutdown()
            raise

    async def run(self, job: Callable[[D], T]) -> T:
        """Run a job on the thread and return its result. Raises StoreUnusable when the file itself is to blame, and
        otherwise StoreError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, job)
        except (sqlite3.Error, OSError, MemoryError) as error:
            if (why := unusable(error)) is not None:
                raise StoreUnusable(why) from error
            raise StoreError(self._reason(error)) from error

    async def reopen(self, make: Callable[[D | None], D]) -> None:
        """Replace the database by the one that `make` returns; `make` closes the old one, which is its argument. When
        `make` raises, there is no database until the next call, whose `make` is called with None. Raises what `make`
        raises."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._reopen, make)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _reason(self, error: Exception) -> str:
        """Return the reason of an error. SQLite reports a plain I/O error when a fault of the disk has made the file
        system read-only, so that is checked and added."""
        if self._database is not None and isinstance(error, sqlite3.Error) and is_read_only(self._database.path.parent):
            return f"{reason_of(error)}: the file system is read-only"
        return reason_of(error)

    def _do(self, job: Callable[[D], T]) -> T:
        database = self._database
        if database is None:
            raise OSError("the store's new file could not be opened yet")
        database.check()
        try:
            return job(database)
        except sqlite3.DatabaseError as error:
            if not database.mended(error):
                raise
            log.error("a damaged part of a store was repaired", file=database.path.name, reason=str(error))
            return job(database)
        finally:
            database.note_files()

    def _reopen(self, make: Callable[[D | None], D]) -> None:
        database, self._database = self._database, None
        self._database = make(database)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()


def reason_of(error: Exception) -> str:
    """Return the system's text of an error, or else its own."""
    return str(getattr(error, "strerror", None) or error)
