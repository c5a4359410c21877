"""Retention: deletes the events of calls that ended long ago, by their age and by the size of the store's file.

The call that ended first is deleted first, as a whole, in small transactions on the writer's thread with pauses between
them, so that commits of live events are not delayed. A cursor before an erased event is expired (4009): resuming after
it would leave a gap that the subscriber could not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from config import Settings
from config.metrics.registry import MetricsRegistry
from config.process.tasks import end_tasks, lasting
from config.settings import Retention as RetentionSettings
from mediaworker.events.ended_calls import EXPIRE_PAUSE_S
from mediaworker.events.frame import timestamp
from mediaworker.events.store import StoreError
from mediaworker.events.stored_events import StoredEvents
from mediaworker.storage.sqlite import erase_set_aside
from mediaworker.storage.sure_clock import SureClock

log = structlog.get_logger()

SWEEP_EVERY_S = 60.0
DAY_S = 86400.0
CALLS = 64
"""The number of ended calls that one query returns."""
SLACK = 0.95
"""The fraction of its limit to which a file over the limit is reduced, so that the next sweeps have nothing to do."""
SHRINK_PAGES = 64


class RetentionTask:
    """Sweeps the store every `SWEEP_EVERY_S`. `clock` returns Unix time in seconds, `steady` a monotonic time.

    Nothing is erased by age while the clock is not certain (`SureClock`).
    """

    def __init__(
        self,
        hub: StoredEvents,
        settings: RetentionSettings,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.erased_calls = self.erased_events = self.swept = 0
        self._counted = 0
        """The number of rows at the last count, less the rows appended and plus the rows erased before it: `rows` adds
        the running totals of both."""
        self._hub, self._clock, self._sure_clock = hub, clock, SureClock(clock, steady)
        self._task: asyncio.Task[None] | None = None

    def use(self, settings: Settings) -> None:
        """Apply reloaded settings."""
        self.settings = settings.retention

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        file = self._hub.file
        metrics.gauge(
            "event_store_bytes",
            "Shows the size of the event store on disk, including its log.",
            lambda: file_bytes(file),
        )
        metrics.gauge("event_store_rows", "Shows how many events are in the store.", lambda: self.rows)
        metrics.gauge(
            "event_store_free_bytes",
            "Shows the free space on the disk of the event store.",
            lambda: _free_bytes(file.parent),
        )
        metrics.counter("retention_calls", "Counts calls that retention has erased.", lambda: self.erased_calls)
        metrics.counter("retention_events", "Counts events that retention has erased.", lambda: self.erased_events)

    def start(self) -> None:
        self._task = lasting(self._run, "retention")

    async def stop(self) -> None:
        await end_tasks(self._task)

    @property
    def rows(self) -> int:
        """The number of events in the store: counted once in the background, and kept up to date from there."""
        return self._counted + self._hub.store.appended - self.erased_events

    async def count(self) -> None:
        """Count the rows of the store. Raises StoreError."""
        appended, erased = self._hub.store.appended, self.erased_events
        self._counted = await self._hub.read(lambda database: database.rows) - appended + erased

    async def sweep(self) -> int:
        """Erase the calls that are due; return their number. Raises StoreError."""
        hub, settings, before = self._hub, self.settings, self.erased_events
        calls, sure = 0, self._sure_clock.is_sure()
        if settings.max_age_days and sure:
            # Damaged stores that were set aside hold transcripts as well.
            before_s = self._clock() - settings.max_age_days * DAY_S
            if names := await asyncio.to_thread(erase_set_aside, hub.file, before_s):
                log.info("damaged stores erased", names=names)
            calls += await self._erase(timestamp(before_s), 0)
        if settings.max_bytes and await hub.read(lambda database: database.used_bytes) > settings.max_bytes:
            calls += await self._erase(None, settings.max_bytes * SLACK)
        if calls:
            await hub.ended_calls.purge()
            more = True
            while more:
                more = await hub.store.write(lambda database: database.shrink(SHRINK_PAGES))
                await asyncio.sleep(EXPIRE_PAUSE_S)
            await hub.store.write(lambda database: database.checkpoint())
            log.info("old calls erased", calls=calls, events=self.erased_events - before)
        return calls

    async def _erase(self, ended_before: str | None, down_to_bytes: float) -> int:
        calls = 0
        while found := await self._hub.read(lambda database: database.ended(ended_before, CALLS)):
            for call_id, last_row in found:
                if down_to_bytes and await self._hub.read(lambda database: database.used_bytes) <= down_to_bytes:
                    return calls
                if ended_before is not None:
                    await self._erase_elsewhere(call_id)
                self.erased_events += await self._hub.ended_calls.expire(call_id, last_row)
                self.erased_calls += 1
                calls += 1
        return calls

    async def _erase_elsewhere(self, call_id: str) -> None:
        """Erase a call that is too old from other places than this store; a cluster overrides it. Raises StoreError."""

    async def _latest_s(self) -> float | None:
        """Return the Unix time of the latest stored end of a call; None when there is none. Raises StoreError."""
        return await self._hub.read(lambda database: database.latest_end_s)

    async def _run(self) -> None:
        counted_in, clock_set = -1, False
        while True:
            try:
                if not clock_set:
                    self._sure_clock.agree(await self._latest_s())
                    clock_set = True
                if counted_in != (renewals := sum(self._hub.store.renewed.values())):
                    await self.count()
                    counted_in = renewals
                if self._hub.trouble is None:
                    await self.sweep()
                    self.swept += 1
            except StoreError as error:
                log.warning("old calls could not be erased", reason=str(error))
            await asyncio.sleep(SWEEP_EVERY_S)


def file_bytes(path: Path) -> int:
    """Return the size of the store on the disk, including its log."""
    found = 0
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            found += os.stat(f"{path}{suffix}").st_size
    return found


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
