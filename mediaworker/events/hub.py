"""Where events are numbered, stored and fanned out, and where subscribers resume.

A subscriber sees a durable event only after it is on disk, and all events in the order in which they were published.
While the disk does not take them, events are shown all the same, with `stored` false.

Row ids begin, at each start, at the wall clock in microseconds, and above those that the start before had reserved.
Events that were seen but lost (a full disk and then a kill, or a power cut) thus never share their ids with later
ones, and a cursor to such an event is known to be unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import structlog

from config import Settings
from mediaworker.events import call_record as calls
from mediaworker.events.database import Database
from mediaworker.events.ended_calls import EndedCalls
from mediaworker.events.event_log import EXPIRED_CURSOR, EventLog
from mediaworker.events.frame import decode, encode, printable, timestamp
from mediaworker.events.schema import (
    TYPES,
    CallRecord,
    CallStarted,
    EngineInfo,
    EngineState,
    Event,
    EventBody,
    EventError,
    Hello,
    Lagged,
    TranscriptPartial,
    is_durable,
    type_of,
)
from mediaworker.events.store import FILE, EventStore, StoreError, StoreUnusable
from mediaworker.events.subscription import GOING_AWAY, Cursor, Entry, ResumeError, Subscription
from mediaworker.events.tables import Head
from mediaworker.ops.metrics import Histogram

log = structlog.get_logger()
T = TypeVar("T")

CHECK_S = 0.5
"""How often the store's file is looked at, whether it is still the one that was opened, and synced: a power cut takes
the events of about so long, at most."""


class EventHub:
    """Publish, store, fan out, resume. Everything but the store's threads happens on one event loop.

    `clock` gives unix time in seconds.
    """

    def __init__(self, settings: Settings, store: EventStore, *, clock: Callable[[], float] = time.time) -> None:
        self.event_log = EventLog(store, self._fan_out)
        self.ended_calls = EndedCalls(self.event_log, store)
        self.engine = EngineInfo(name="", state="idle")
        self.published = dict.fromkeys(sorted(TYPES - {"hello", "lagged"}), 0)
        """Counts by type."""
        self.strays = self.overruns = self._dropped = 0
        self.delay_s = Histogram()
        """From `publish` to fan-out."""
        self.final_commit_s, self.final_fan_out_s = Histogram(), Histogram()
        """Of finals: from `publish` to the end of its commit, and on to the last subscriber's waiting room."""
        self._store, self._queue, self._clock = store, settings.events.queue, clock
        self._server = f"mediaworker/{version('mediaworker')}"
        self._head: Head | None = None
        self._worker_seq = 0
        self._latest: dict[str, CallRecord] = {}
        """Open calls after the last event published."""
        self._visible: dict[str, CallRecord] = {}
        """Open calls after the last event fanned out."""
        self._subscriptions: set[Subscription] = set()
        self._live: dict[str | None, set[Subscription]] = {}
        """By the call they follow; None: all."""
        self._hello: tuple[tuple[int, EngineInfo], str] | None = None
        self._watch_task: asyncio.Task[None] | None = None

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store and end the calls that a dead process left open. Raises StoreError."""
        head = self._head = await self._store.start()
        # Above all that may have been seen: a power cut may have taken the last events, and set back the clock.
        first_row = max(head.row + 1, head.reserved + 1, int(self._clock() * 1_000_000))
        self.event_log.begin(head, first_row)
        self._worker_seq = head.worker_seq
        for record in head.open_calls:
            self._latest[record.call_id] = self._visible[record.call_id] = record
        for record in head.open_calls:
            for body in calls.closing(record, await self._history(record.call_id)):
                self.publish(record.call_id, record.at_ms, body)
        if head.open_calls:
            log.warning("calls were open when the worker last stopped", calls=len(head.open_calls))
        self._watch_task = asyncio.get_running_loop().create_task(self._watch(), name="events-watch")
        await self.flush()

    async def _history(self, call_id: str) -> list[Event]:
        frames = await self._store.read(lambda database: database.frames(call_id, calls.HISTORY))
        found = []
        for frame in frames:
            try:
                found.append(decode(frame))
            except EventError as error:  # a disk that forgets must not keep the worker from starting
                log.error("unreadable event", call_id=call_id, error=str(error))
        return found

    async def stop(self) -> None:
        """Write what is there, end every subscription (1001), close the store."""
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
        await self.event_log.stop()
        if self.event_log.backlog:
            # Lost in the last half second: what is left has to go somewhere.
            try:
                await self._store.check()
            except StoreUnusable as error:
                with contextlib.suppress(StoreError):
                    await self._renew(error)
                await self.event_log.stop()
            except StoreError:
                pass
        for subscription in tuple(self._subscriptions):
            subscription.end(GOING_AWAY, "the worker stops")
        await self._store.stop()

    async def _watch(self) -> None:
        """Keep the store's file synced, and have it written anew when it is damaged, deleted or replaced."""
        lost: StoreUnusable | None = None
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                if lost is None:
                    await self._store.check()
                    await self._store.sync()
                    continue
                await self._renew(lost)
                lost = None
            except StoreUnusable as error:
                log.error("the event store has to be written anew", reason=str(error))
                self.event_log.fail(str(error))
                lost = error
                with contextlib.suppress(StoreError):
                    await self._renew(lost)
                    lost = None
            except StoreError as error:
                log.debug("the event store cannot be looked after", reason=str(error))

    async def _renew(self, lost: StoreUnusable) -> None:
        """Raises StoreError."""
        assert self._head is not None
        records = tuple(self._visible.values())
        if await self._store.renew(lost.error, self._head.store_id, records, self.event_log.committed):
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
        return self._store.directory / FILE

    @property
    def appended(self) -> int:
        """Durable events written since the start."""
        return self._store.appended

    @property
    def warnings(self) -> list[str]:
        """What is to be known about the store while events are being stored all the same."""
        store = self._store
        found = [f"event store: {store.warning}"] if store.warning is not None else []
        if store.set_aside:
            names = ", ".join(store.set_aside)
            found.append(f"damaged files of the event store were set aside in data_dir: {names}")
        return found

    @property
    def store(self) -> EventStore:
        """For its counters."""
        return self._store

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    @property
    def dropped(self) -> int:
        """Partials dropped for slow subscribers, since the start."""
        return self._dropped + sum(subscription.dropped for subscription in self._subscriptions)

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self, call_id: str | None, at_ms: int, body: EventBody) -> None:
        """Number the event and put it in line for the disk and the subscribers. Never blocks.

        An event outside its call, before `call.started` or after `call.ended`, is dropped and counted.
        """
        record = None if call_id is None else self._latest.get(call_id)
        if call_id is not None and (
            record.state == "ended" if record is not None else not isinstance(body, CallStarted)
        ):
            self.strays += 1
            log.debug("event outside its call", call_id=call_id, type=type_of(body))
            return
        self.published[type_of(body)] += 1
        if isinstance(body, EngineState):
            self.engine = EngineInfo(body.engine or self.engine.name, body.state, self.engine.languages)
        self.event_log.put(self._entry(call_id, at_ms, body, record))

    def _entry(self, call_id: str | None, at_ms: int, body: EventBody, record: CallRecord | None) -> Entry:
        assert self._head is not None, "the hub has not been started"
        durable = is_durable(body)
        seq = self._worker_seq if call_id is None else 0 if record is None else record.seq
        row = self.event_log.row
        if durable:
            row, seq = self.event_log.next_row, seq + 1
        event = Event(f"{self._head.store_id}:{row}", call_id, seq, at_ms, timestamp(self._clock()), body)
        try:
            frame = encode(event)
        except UnicodeEncodeError:
            event = replace(event, body=printable(body))
            frame = encode(event)
        published_s = asyncio.get_running_loop().time()
        if not durable:
            key = body.utterance_id if isinstance(body, TranscriptPartial) else f"{type_of(body)} {call_id}"
            return Entry(None, call_id, seq, type_of(body), frame, published_s, replaces=key)
        after = None
        if call_id is None:
            self._worker_seq = seq
        else:
            after = self._latest[call_id] = calls.apply(record, event)
        return Entry(row, call_id, seq, type_of(body), frame, published_s, record=after)

    def _fan_out(self, entry: Entry) -> None:
        now_s = asyncio.get_running_loop().time()
        self.delay_s.observe(now_s - entry.published_s)
        if (record := entry.record) is not None:
            if record.state == "ended":
                self._visible.pop(record.call_id, None)
                self._latest.pop(record.call_id, None)
            else:
                self._visible[record.call_id] = record
        shown = entry
        if entry.row is not None and self.event_log.is_unsaved(entry):
            self.event_log.unstored += 1
            shown = replace(entry, frame=self.event_log.frame(entry))
        for key in {None, entry.call_id}:
            for subscription in self._live.get(key, ()):
                subscription.offer(shown)
        if entry.type == "transcript.final":
            self.final_commit_s.observe(now_s - entry.published_s)
            self.final_fan_out_s.observe(asyncio.get_running_loop().time() - now_s)

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
            raise ResumeError("the cursor is another store's")
        if cursor.row > self.event_log.visible_row:
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
        return await self._store.read(query)

    async def maintain(self, job: Callable[[Database], T]) -> T:
        """A short piece of upkeep on the writer's thread, behind what waits for it. Raises StoreError."""
        return await self._store.write(job)

    def _here(self) -> Cursor:
        assert self._head is not None, "the hub has not been started"
        return Cursor(self._head.store_id, self.event_log.visible_row)

    def _greeting(self, call: str) -> str:
        if call != "*":
            record = self._visible.get(call)
            return self._notice(str(self._here()), Hello(self._server, self.engine, [record] if record else []))
        key = (self.event_log.visible_row, self.engine)
        if self._hello is None or self._hello[0] != key:
            # Kept while nothing changes: after a network fault all subscribers come back at once.
            hello = Hello(self._server, self.engine, list(self._visible.values()))
            self._hello = key, self._notice(str(self._here()), hello)
        return self._hello[1]

    def _notice(self, cursor: str, body: EventBody) -> str:
        """An event of a connection, not of a call."""
        return encode(Event(cursor, None, self._worker_seq, 0, timestamp(self._clock()), body))
