"""Stored events with their subscribers: fan-out, resumption after a cursor, and the watch over the store's file.

`mediaworker.events.hub` adds the events of this worker's own calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import structlog

from config import Settings
from config.process.tasks import end_tasks, lasting
from mediaworker.events.call_record import HISTORY
from mediaworker.events.database import Database
from mediaworker.events.ended_calls import EndedCalls
from mediaworker.events.event_log import EXPIRED_CURSOR, EventLog
from mediaworker.events.frame import decode, encode, timestamp
from mediaworker.events.schema import TYPES, CallRecord, EngineInfo, Event, EventBody, EventError, Hello, Lagged
from mediaworker.events.store import EventStore, StoreError, StoreUnusable
from mediaworker.events.subscription import GOING_AWAY, Cursor, Entry, ResumeError, Subscription
from mediaworker.events.tables import Head
from mediaworker.storage.sqlite import UnusableDatabase

log = structlog.get_logger()
T = TypeVar("T")

CHECK_S = 0.5
"""How often the store is synced, and its file is checked to be still the one that was opened. A power cut loses at most
the events of about this time."""


class StoredEvents(ABC):
    """Stores events, fans them out and lets subscribers resume. All but the store's threads runs on one event loop.

    `clock` returns Unix time in seconds.
    """

    SHARED = False
    """Whether cursors are valid at other workers as well, as they are in a cluster."""
    FOREIGN = "the cursor is another store's"

    def __init__(self, settings: Settings, store: EventStore, *, clock: Callable[[], float]) -> None:
        self.event_log = EventLog(store, self._fan_out)
        self.ended_calls = EndedCalls(self.event_log, store)
        self.overruns = self._dropped = 0
        self.store, self._queue, self._clock = store, settings.events.queue, clock
        self._server = f"mediaworker/{version('mediaworker')}"
        self._head: Head | None = None
        self._worker_seq = 0
        self._visible: dict[str, CallRecord] = {}
        """The open calls, as of the last event that was fanned out."""
        self._subscriptions: set[Subscription] = set()
        self._live: dict[str | None, set[Subscription]] = {}
        """The live subscriptions by the call that they follow; None: all calls."""
        self._hello: tuple[tuple[str, EngineInfo], str] | None = None
        self._watch_task: asyncio.Task[None] | None = None

    # -- life -------------------------------------------------------------------------------------------------------

    def _watch_store(self) -> None:
        """Keep the store's file synced, and replace it when it is lost, until `stop`."""
        self._watch_task = lasting(
            lambda: self.store.look_after(CHECK_S, self._check_store, self._renew), "events-watch"
        )

    async def stop(self) -> None:
        """Write all events, end every subscription (1001) and close the store."""
        await end_tasks(self._watch_task)
        await self.event_log.stop()
        if self.event_log.backlog:
            # The file may have been lost since the last check, up to half a second ago. The events that are left are
            # then written to a new one.
            try:
                await self.store.check()
            except StoreUnusable as error:
                with contextlib.suppress(StoreError):
                    await self._renew(error.error)
                await self.event_log.stop()
            except StoreError:
                pass
        for subscription in tuple(self._subscriptions):
            subscription.end(GOING_AWAY, "the worker stops")
        await self.store.stop()

    async def _check_store(self) -> None:
        """Check the store's file and sync it. Raises StoreError."""
        await self.store.check()
        await self.store.sync()

    async def _renew(self, lost: UnusableDatabase) -> None:
        """Replace a lost store by a new one that holds the open calls. Raises StoreError."""
        assert self._head is not None
        self.event_log.fail(str(lost))
        records = tuple(self._visible.values())
        if await self.store.renew(lost, self._head.store_id, records, self.event_log.committed):
            # A subscriber that has seen every committed event goes on without a gap; an earlier cursor would miss what
            # the old file held, so it expires. `committed` is read again, because a commit that was under way may have
            # gone to the old file.
            self.event_log.raise_floor(self.event_log.committed)
        self.event_log.try_again()

    async def flush(self) -> None:
        """Wait until everything published so far has been fanned out."""
        await self.event_log.flush()

    @property
    def trouble(self) -> str | None:
        """Why events are not being stored; None while they are. While it is set, the worker is not ready."""
        return self.event_log.trouble

    @property
    def cursor(self) -> Cursor:
        """The cursor after the last event that was fanned out."""
        return self._here()

    @property
    def file(self) -> Path:
        """The store's file."""
        return self.store.file

    @property
    def warnings(self) -> list[str]:
        """Sentences for the operator about the store, valid although events are being stored."""
        return self.store.warnings

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    @property
    def dropped(self) -> int:
        """The number of partials dropped for slow subscribers since the start."""
        return self._dropped + sum(subscription.dropped for subscription in self._subscriptions)

    # -- fanning out ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _fan_out(self, entry: Entry) -> None:
        """Called by the event log with each event, in order."""

    def _note(self, record: CallRecord | None) -> None:
        """Keep the record of a call as of the event that has just been fanned out."""
        if record is not None and record.state == "ended":
            self._visible.pop(record.call_id, None)
        elif record is not None:
            self._visible[record.call_id] = record

    def _offer(self, entry: Entry) -> None:
        """Offer an event to the live subscribers of its call and of all calls."""
        for key in {None, entry.call_id}:
            for subscription in self._live.get(key, ()):
                subscription.offer(entry)

    # -- subscribing ------------------------------------------------------------------------------------------------

    def subscribe(
        self, *, call: str = "*", after: str | None = None, types: frozenset[str] | None = None
    ) -> Subscription:
        """Subscribe to frames from now on, or after the cursor `after`: of one call or of all (`*`), and of these types
        or of all.

        `<store id>:0` is before everything that is still stored. Raises ResumeError when `after` is unknown. Whether it
        has expired may be found only when iteration begins.
        """
        here = self._here()
        cursor = here if after is None else self._resume(after)
        assert types is None or types <= TYPES
        subscription = Subscription(
            self,
            call=None if call == "*" else call,
            types=types,
            limit=self._queue,
            hello=self._greeting(call),
            cursor=cursor,
            replay=after is not None,
            lagged=lambda cursor, dropped: self._notice(cursor, Lagged(dropped)),
        )
        self._subscriptions.add(subscription)
        if after is None:
            self._attach(subscription)
        return subscription

    def _resume(self, after: str) -> Cursor:
        try:
            cursor = Cursor.parse(after)
        except EventError as error:
            raise ResumeError(str(error)) from None
        if cursor.store_id != self._here().store_id:
            raise ResumeError(self.FOREIGN)
        if not self.SHARED and (cursor.row > self.event_log.visible_row or cursor.seen):
            raise ResumeError("unknown cursor")
        if self.event_log.is_expired(cursor.row):
            raise ResumeError(EXPIRED_CURSOR)
        return cursor

    async def check(self, subscription: Subscription) -> None:
        """Raise ResumeError when the row to resume after is not in the store. Raises StoreError as well."""
        if not await self.event_log.has_row(subscription.cursor.row):
            raise ResumeError("unknown cursor")

    async def page(self, subscription: Subscription) -> list[tuple[int, str]]:
        """Return the next frames of a subscription that catches up. Once it has caught up, it becomes live."""
        rows = await self.event_log.page(subscription)
        if rows is None:
            self._attach(subscription)
        return rows or []

    def _attach(self, subscription: Subscription) -> None:
        subscription.live = True
        self._live.setdefault(subscription.call, set()).add(subscription)

    def detach(self, subscription: Subscription) -> None:
        """Called by a subscription when it ends. Idempotent."""
        if subscription not in self._subscriptions:
            return
        self._subscriptions.discard(subscription)
        self._dropped += subscription.dropped
        self.overruns += subscription.overrun
        if live := self._live.get(subscription.call):
            live.discard(subscription)
            if not live:
                del self._live[subscription.call]

    # -- calls and queries ------------------------------------------------------------------------------------------

    def call(self, call_id: str) -> CallRecord | None:
        """Return the record of an open call as of the last event that was fanned out; None when there is none."""
        return self._visible.get(call_id)

    @property
    def calls(self) -> Collection[CallRecord]:
        return self._visible.values()

    async def read(self, query: Callable[[Database], T]) -> T:
        """Run a query on the store's reading thread, beside its writer. Raises StoreError."""
        return await self.store.read(query)

    async def history(self, call_id: str) -> list[Event]:
        """Return the stored events of a call that `call_record.closing` needs. Raises StoreError."""
        frames = await self.store.read(lambda database: database.frames(call_id, HISTORY))
        found = []
        for frame in frames:
            try:
                found.append(decode(frame))
            except EventError as error:  # a damaged event must not keep its call open
                log.error("unreadable event", call_id=call_id, error=str(error))
        return found

    def _here(self) -> Cursor:
        assert self._head is not None, "the hub has not been started"
        return Cursor(self._head.store_id, self.event_log.visible_row)

    @property
    @abstractmethod
    def _engine(self) -> EngineInfo:
        """The engine as `hello` reports it."""

    def _greeting(self, call: str) -> str:
        cursor, engine = str(self._here()), self._engine
        if call != "*":
            record = self.call(call)
            return self._notice(cursor, Hello(self._server, engine, [record] if record else []))
        if self._hello is None or self._hello[0] != (cursor, engine):
            # The greeting is cached while nothing changes: after a network fault all subscribers reconnect at once.
            self._hello = (cursor, engine), self._notice(cursor, Hello(self._server, engine, [*self.calls]))
        return self._hello[1]

    def _notice(self, cursor: str, body: EventBody) -> str:
        """Return the frame of an event that belongs to a connection rather than to a call."""
        return encode(Event(cursor, None, self._worker_seq, 0, timestamp(self._clock()), body))
