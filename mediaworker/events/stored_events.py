"""Events that are stored and followed: subscribers, what they resume from, and the care of the store's file.

`mediaworker.events.hub` is the feed of what this worker has heard itself.
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
from config.tasks import end_tasks, lasting
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
"""How often the store's file is looked at, whether it is still the one that was opened, and synced: a power cut takes
the events of about so long, at most."""


class StoredEvents(ABC):
    """Store, fan out, resume. Everything but the store's threads happens on one event loop.

    `clock` gives unix time in seconds.
    """

    SHARED = False
    """Cursors are valid at other workers as well."""
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
        """Open calls after the last event fanned out."""
        self._subscriptions: set[Subscription] = set()
        self._live: dict[str | None, set[Subscription]] = {}
        """By the call they follow; None: all."""
        self._hello: tuple[tuple[str, EngineInfo], str] | None = None
        self._watch_task: asyncio.Task[None] | None = None

    # -- life -------------------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Keep the store's file synced, and have it written anew when it is lost, until `stop`."""
        self._watch_task = lasting(lambda: self.store.look_after(CHECK_S, self._look, self._renew), "events-watch")

    async def stop(self) -> None:
        """Write what is there, end every subscription (1001), close the store."""
        await end_tasks(self._watch_task)
        await self.event_log.stop()
        if self.event_log.backlog:
            # Lost in the last half second: what is left has to go somewhere.
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

    async def _look(self) -> None:
        """Raises StoreError."""
        await self.store.check()
        await self.store.sync()

    async def _renew(self, lost: UnusableDatabase) -> None:
        """Raises StoreError."""
        assert self._head is not None
        self.event_log.fail(str(lost))
        records = tuple(self._visible.values())
        if await self.store.renew(lost, self._head.store_id, records, self.event_log.committed):
            # Who has seen everything up to here goes on; who has not would find a gap. A commit that was under way may
            # have been the last one to the old file.
            self.event_log.raise_floor(self.event_log.committed)
        self.event_log.try_again()

    async def flush(self) -> None:
        """Until everything published so far has been fanned out."""
        await self.event_log.flush()

    @property
    def trouble(self) -> str | None:
        """Why events are not being stored, None when they are: a reason not to be ready."""
        return self.event_log.trouble

    @property
    def cursor(self) -> Cursor:
        """Behind the last event that was fanned out."""
        return self._here()

    @property
    def file(self) -> Path:
        """Where the events are."""
        return self.store.file

    @property
    def warnings(self) -> list[str]:
        """What is to be known about the store while events are being stored all the same."""
        return self.store.warnings

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    @property
    def dropped(self) -> int:
        """Partials dropped for slow subscribers, since the start."""
        return self._dropped + sum(subscription.dropped for subscription in self._subscriptions)

    # -- fanning out ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _fan_out(self, entry: Entry) -> None:
        """The log hands an event on."""

    def _note(self, record: CallRecord | None) -> None:
        """An event has been fanned out, after which this is known of its call."""
        if record is not None and record.state == "ended":
            self._visible.pop(record.call_id, None)
        elif record is not None:
            self._visible[record.call_id] = record

    def _offer(self, entry: Entry) -> None:
        """To its subscribers that are live."""
        for key in {None, entry.call_id}:
            for subscription in self._live.get(key, ()):
                subscription.offer(entry)

    # -- subscribing ------------------------------------------------------------------------------------------------

    def subscribe(
        self, *, call: str = "*", after: str | None = None, types: frozenset[str] | None = None
    ) -> Subscription:
        """Frames from now on, or after the cursor `after`, of one call or of all (`*`), of these types or of all.

        `<store id>:0` is before everything that is still stored. Raises ResumeError when `after` is unknown; whether
        it has expired may show only when iteration begins.
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
        """Raises ResumeError when the row to resume after is not, or never was, in the store."""
        if not await self.event_log.has_row(subscription.cursor.row):
            raise ResumeError("unknown cursor")

    async def page(self, subscription: Subscription) -> list[tuple[int, str]]:
        """The next frames of a subscription that catches up. It is live as soon as nothing is left to catch up with."""
        rows = await self.event_log.page(subscription)
        if rows is None:
            self._attach(subscription)
        return rows or []

    def _attach(self, subscription: Subscription) -> None:
        subscription.live = True
        self._live.setdefault(subscription.call, set()).add(subscription)

    def detach(self, subscription: Subscription) -> None:
        """Called by the subscription when it is over. Idempotent."""
        if subscription not in self._subscriptions:
            return
        self._subscriptions.discard(subscription)
        self._dropped += subscription.dropped
        self.overruns += subscription.overrun
        if live := self._live.get(subscription.call):
            live.discard(subscription)
            if not live:
                del self._live[subscription.call]

    # -- what is known now ------------------------------------------------------------------------------------------

    def call(self, call_id: str) -> CallRecord | None:
        """A call that has not ended, as its subscribers know it."""
        return self._visible.get(call_id)

    @property
    def calls(self) -> Collection[CallRecord]:
        return self._visible.values()

    async def read(self, query: Callable[[Database], T]) -> T:
        """Ask the store, beside its writer. Raises StoreError."""
        return await self.store.read(query)

    async def history(self, call_id: str) -> list[Event]:
        """What `call_record.closing` reads of a call. Raises StoreError."""
        frames = await self.store.read(lambda database: database.frames(call_id, HISTORY))
        found = []
        for frame in frames:
            try:
                found.append(decode(frame))
            except EventError as error:  # a disk that forgets must not keep a call open
                log.error("unreadable event", call_id=call_id, error=str(error))
        return found

    def _here(self) -> Cursor:
        assert self._head is not None, "the hub has not been started"
        return Cursor(self._head.store_id, self.event_log.visible_row)

    @property
    @abstractmethod
    def _engine(self) -> EngineInfo:
        """What greetings say of the engine."""

    def _greeting(self, call: str) -> str:
        cursor, engine = str(self._here()), self._engine
        if call != "*":
            record = self.call(call)
            return self._notice(cursor, Hello(self._server, engine, [record] if record else []))
        if self._hello is None or self._hello[0] != (cursor, engine):
            # Kept while nothing changes: after a network fault all subscribers come back at once.
            self._hello = (cursor, engine), self._notice(cursor, Hello(self._server, engine, [*self.calls]))
        return self._hello[1]

    def _notice(self, cursor: str, body: EventBody) -> str:
        """An event of a connection, not of a call."""
        return encode(Event(cursor, None, self._worker_seq, 0, timestamp(self._clock()), body))
