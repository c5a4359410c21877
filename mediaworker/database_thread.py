"""A database on a thread of its own: the event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Closable(Protocol):
    def close(self) -> None: ...


D = TypeVar("D", bound=Closable)


class StoreError(Exception):
    """A store cannot be opened, read or written; the message says why."""


class DatabaseThread(Generic[D]):
    """One connection, used on its thread alone, in the order in which it is asked."""

    def __init__(self, thread: ThreadPoolExecutor, database: D) -> None:
        self._thread, self._database = thread, database

    @classmethod
    async def open(cls, name: str, make: Callable[[], D]) -> DatabaseThread[D]:
        """Raises what `make` raises."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        try:
            return cls(thread, await asyncio.get_running_loop().run_in_executor(thread, make))
        except BaseException:
            thread.shutdown()
            raise

    async def run(self, job: Callable[[D], T]) -> T:
        """Raises StoreError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, job, self._database)
        except (sqlite3.Error, OSError, MemoryError) as error:
            raise StoreError(say(error)) from error

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
        self._thread.shutdown()


def say(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
