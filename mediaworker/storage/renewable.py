"""A store that renews itself: one SQLite file with a thread of its own, and a new file when that one is lost.

A file that is found damaged at the start is set aside. When a file is damaged, deleted or replaced in use, the next job
on its thread or the loop `look_after` notices it. `look_after` then begins a new file with the records that the old one
can still return and those that the store's owner has in memory. A query that meets damage fails alone: damaged old
records do not keep the store from writing new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import structlog

from config.metrics.registry import MetricsRegistry
from mediaworker.storage.database_thread import DatabaseThread, StoreError, StoreUnusable, reason_of
from mediaworker.storage.durable import make_directory, sync_directory
from mediaworker.storage.sqlite import (
    REASONS,
    Reason,
    SqliteFile,
    UnusableDatabase,
    files_set_aside,
    make_way,
    open_file,
    save_log,
)

T = TypeVar("T")
D = TypeVar("D", bound=SqliteFile)
LOG_EVERY_S = 60.0
log = structlog.get_logger()


class RenewableStore(Generic[D]):
    """The base of the stores. A subclass opens its kind of file and decides which records a new file begins with.

    Args:
        file: where it is a link, the file that it points to is opened, set aside and replaced.
        database: opens it, or begins one.
        now: the time as a warning shows it.
    """

    KIND: ClassVar[str]
    """The store's name in warnings, in the log and in metrics."""
    RECORDS: ClassVar[str]
    """The name of its records in the texts of metrics."""
    THREAD: ClassVar[str]
    """The name of its thread."""
    LOST: ClassVar[str]
    """The part of a warning that names the records missing after a file was found damaged at the start."""
    BEGUN: ClassVar[str]
    """The part of a warning that names the records a new file began with after one was lost in use."""

    def __init__(self, file: Path, database: type[D], now: Callable[[], str]) -> None:
        self.renewed: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        """The number of renewals since the start, by the reason why the old file was unusable."""
        self.damaged_records = 0
        """The number of damaged records met in reading since the start; one that is read twice counts twice."""
        self.set_aside: tuple[str, ...] = ()
        """The names of damaged files beside the store, as of the latest check."""
        self.warning: str | None = None
        """A sentence for the operator about the latest renewal; None if there was none."""
        self._link, self._database, self._now = file, database, now
        self._thread: DatabaseThread[D] | None = None
        self._unusable: StoreUnusable | None = None
        """The error that made the file unusable for writing; None after a renewal."""
        self._logged_s = -LOG_EVERY_S

    @property
    def file(self) -> Path:
        return Path(os.path.realpath(self._link))

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    @property
    def warnings(self) -> list[str]:
        """Sentences for the operator about the store, valid although it can be written."""
        found = [f"{self.KIND}: {self.warning}"] if self.warning is not None else []
        if self.set_aside:
            names = ", ".join(self.set_aside)
            found.append(f"damaged files of the {self.KIND} were set aside in data_dir: {names}")
        return found

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        name = self.KIND.replace(" ", "_")
        metrics.counter(
            f"{name}_renewals",
            f"Counts how often a new {self.KIND} was begun because its file was damaged, deleted or replaced.",
            lambda: self.renewed,
            "reason",
        )
        metrics.counter(
            f"{name}_damaged_records",
            f"Counts stored {self.RECORDS} that turned out to be unreadable.",
            lambda: self.damaged_records,
        )
        metrics.gauge(
            f"{name}_files_set_aside",
            f"Shows how many damaged {self.KIND}s are in `data_dir` beside the one in use.",
            lambda: len(self.set_aside),
        )

    # -- overridden by each store -------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Called on the store's thread before a file is opened. Raises OSError."""
        make_directory(self.file.parent)

    async def _on_opened(self) -> None:
        """Called after the file has been opened at the start or by a renewal. Raises sqlite3.Error, OSError."""

    # -- jobs on its thread -------------------------------------------------------------------------------------------

    async def write(self, job: Callable[[D], T]) -> T:
        """Run `job` after all earlier ones. Raises StoreError."""
        return await self._run(job)

    async def read(self, query: Callable[[D], T]) -> T:
        """Run `query`, which sees everything committed before. Raises StoreError."""
        return await self._ask(self._thread, query)

    async def check(self) -> None:
        """Raise StoreUnusable when the file has to be replaced, and StoreError when it cannot be checked."""
        await self._run(lambda database: self._note_set_aside())

    async def _run(self, job: Callable[[D], T]) -> T:
        if self._unusable is not None:
            raise self._unusable  # a record that is still written to the old file would be lost with it
        try:
            return await self._opened(self._thread).run(job)
        except StoreUnusable as error:
            self._unusable = error
            raise

    async def _ask(self, thread: DatabaseThread[D] | None, query: Callable[[D], T]) -> T:
        try:
            return await self._opened(thread).run(query)
        except StoreUnusable as error:
            if error.error.reason == "damaged":
                self._on_damage(str(error))
            raise

    def _opened(self, thread: DatabaseThread[D] | None) -> DatabaseThread[D]:
        if thread is None:
            raise StoreError(self._why_closed())
        return thread

    def _why_closed(self) -> str:
        return f"the {self.KIND} is closed"

    # -- the file under it --------------------------------------------------------------------------------------------

    def _make(self, path: Path, *, read_only: bool = False) -> D:
        """Open a file, or begin one. Raises sqlite3.Error, OSError."""
        return self._database(path, read_only=read_only, on_damage=self._on_damage)

    async def _open(self) -> None:
        """Open the store's file on a new thread. Raises sqlite3.Error, OSError."""
        self._thread = await DatabaseThread.open(self.THREAD, self._open_file)
        await self._on_opened()

    def _open_file(self) -> D:
        self._prepare()
        database, damage = open_file(self.file, self._make)
        if damage is not None:
            self._note_renewal("damaged", f"{damage}: {self.LOST}")
        self._note_set_aside()
        sync_directory(self.file.parent)
        return database

    async def close(self) -> None:
        if self._thread is not None:
            with contextlib.suppress(sqlite3.Error):
                await self._thread.close()
        self._thread = self._unusable = None

    async def look_after(
        self,
        every_s: float,
        check: Callable[[], Awaitable[object]],
        renew: Callable[[UnusableDatabase], Awaitable[object]],
    ) -> None:
        """Check the store every `every_s` until cancelled, and renew its file once it is unusable.

        Args:
            check: raises StoreUnusable when the file is unusable, and StoreError when it cannot be checked now.
            renew: begins a new file; when it raises StoreError, it is called again after `every_s`.
        """
        unusable, later = f"the {self.KIND} has to be renewed", f"the {self.KIND} cannot be checked now"
        lost: UnusableDatabase | None = None
        while True:
            await asyncio.sleep(every_s)
            try:
                if lost is None:
                    await check()
                else:
                    await renew(lost)
                    lost = None
            except StoreUnusable as error:
                log.error(unusable, reason=str(error))
                lost = error.error
                with contextlib.suppress(StoreError):
                    await renew(lost)
                    lost = None
            except StoreError as error:
                log.debug(later, reason=str(error))

    async def _renew(self, error: UnusableDatabase, carry: Callable[[D], None], restore: Callable[[D], None]) -> bool:
        """Go on in a new file. Return True when no record is missing, because only the log was lost. Raises StoreError;
        the caller then tries again.

        Args:
            carry: keeps the records that the old file can still return; it must not raise. It is not called at a second
                attempt, when the old file is closed.
            restore: writes those records into the new file.
        """

        def renewed(old: D | None) -> D:
            whole = save_log(error, old)
            if old is not None and not whole:
                carry(old)
            self._prepare()
            return self._make(self.file) if whole else self._anew(old, restore)

        try:
            await self._opened(self._thread).reopen(renewed)
            await self._on_opened()
        except (OSError, sqlite3.Error) as failed:
            raise StoreError(f"{self.file.name}: {reason_of(failed)}") from failed
        self._unusable = None
        self._note_renewal(error.reason, f"{error}; {'nothing is missing' if error.log_only else self.BEGUN}")
        return error.log_only

    def _anew(self, old: D | None, restore: Callable[[D], None]) -> D:
        make_way(self.file, old)
        database = self._make(self.file)
        try:
            restore(database)
        except BaseException:
            database.close()
            raise
        self._note_set_aside()
        sync_directory(self.file.parent)
        return database

    def _note_set_aside(self) -> None:
        with contextlib.suppress(OSError):
            self.set_aside = tuple(path.name for path in files_set_aside(self.file))

    def _note_renewal(self, reason: Reason, text: str) -> None:
        self.renewed[reason] += 1
        self.warning = f"{self._now()}: {text}"
        event = f"the {self.KIND} was renewed"
        log.error(event, reason=text)

    def _on_damage(self, what: str) -> None:
        self.damaged_records += 1
        if time.monotonic() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = time.monotonic()
            event = f"the {self.KIND} is damaged"
            log.error(event, what=what, damaged_so_far=self.damaged_records)
