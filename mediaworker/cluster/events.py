"""The feed of all workers' events: those of other workers in the order of the stream, this worker's own at once.

A row is a place in the stream, the same at every worker, so a cursor is valid everywhere. This worker's own events are
shown before the stream has them, so that its subscribers need not wait for the stream. A cursor therefore also contains
the row reached in this worker's own store, and a subscriber that resumes at another worker gets no event twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

import structlog

from config import Settings
from mediaworker.cluster.cursors import closer_of, merged, origin, stamp, stored
from mediaworker.cluster.own_calls import OwnCalls, lost
from mediaworker.cluster.own_events import EarlyEvents, OwnEvents
from mediaworker.events import call_record as calls
from mediaworker.events.frame import decode, encode
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import (
    CALL_ERASED,
    CallRecord,
    EngineInfo,
    Event,
    EventError,
    TranscriptFinal,
    TranscriptPartial,
    type_of,
)
from mediaworker.events.store import EventStore, StoreError
from mediaworker.events.stored_events import StoredEvents
from mediaworker.events.subscription import Cursor, Entry, ResumeError, Subscription
from mediaworker.events.tables import Carried
from mediaworker.tracing.traces import Traces

INDEXES = 1024
"""The most events in a message of the stream. A row is the message's number × INDEXES + the event's index in it."""
ENDED = 10_000
FINISHED = 16
CATCH_UP_S = 10.0
"""How long a subscriber waits if its cursor, from another worker, is ahead of the events received here."""
log = structlog.get_logger("cluster")


class ClusterEvents(StoredEvents):
    """The feed of all workers' events. The owner calls `start` once the stream's id is known."""

    SHARED = True
    FOREIGN = "the cursor is of another cluster, or of a worker alone"

    def __init__(
        self,
        settings: Settings,
        store: EventStore,
        local: EventHub,
        traces: Traces | None = None,
        *,
        ask: Callable[[], Awaitable[object]],
        prompt: Callable[[], bool],
    ) -> None:
        """`ask` and `prompt`: see `OwnEvents`."""
        super().__init__(settings, store, clock=time.time)
        self.strays = 0
        """The number of events whose call's beginning never arrived here."""
        self._local, self._traces = local, traces
        self._traced: dict[int, tuple[str, str, str]] = {}
        """Finals of other workers that wait for the store: row → the call's `traceparent`, the utterance, the time."""
        self._own = ""
        """The id of this worker's own store."""
        self._first_own_row = self._own_row = 0
        """Own events after the first row and up to the second have been shown at once."""
        self._early = EarlyEvents()
        self.own_calls = OwnCalls()
        self._ending: set[asyncio.Task[None]] = set()
        self.own_events = OwnEvents(self._show_own, ask, prompt)
        self._messages: dict[str, int] = {}
        """Worker → the number of its latest message in the stream."""
        self._origins: dict[str, str] = {}
        """Call id → the store of the worker that has the open call."""
        self._latest: dict[str, CallRecord] = {}
        """Open calls after the latest event received, which the store may not have yet."""
        self._partials: dict[str, dict[str, TranscriptPartial]] = {}
        """Open calls of other workers → utterance → its latest partial."""
        self._finished: dict[str, deque[str]] = {}
        """Open calls → the utterances with the latest finals: a partial that arrives after its final is dropped."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        """Calls that ended recently: any further event of them is a duplicate."""
        self._arrived = asyncio.Event()
        self._passed = 0
        """The number of the latest message that has been processed."""

    async def start(self, stream_id: str) -> None:
        """Raises StoreError."""
        head = await self.store.start()
        if head.store_id != stream_id:
            if head.row:
                await self.store.stop()
                self.store.discard()
                head = await self.store.start()
            await self.store.write(lambda database: database.restore(stream_id, Carried([], []), (), 0))
            head = replace(head, store_id=stream_id, row=0, reserved=0, floor=0, open_calls=())
        self._head = head
        self.event_log.begin(head, 0)
        for record in head.open_calls:
            self._visible[record.call_id] = self._latest[record.call_id] = record
            self._origins[record.call_id] = await self._origin(record.call_id)
        for record in reversed(await self.store.read(lambda database: database.calls(ENDED))):
            if record.state == "ended":
                self._ended[record.call_id] = None
        self._own, self._own_row = self._local.cursor.store_id, self._local.cursor.row
        self._first_own_row = self._own_row
        self._local.on_shown.append(self.own_events.take)
        self.own_events.start()
        self._watch_store()

    async def _origin(self, call_id: str) -> str:
        frames = await self.store.read(lambda database: database.frames(call_id, frozenset({"call.started"})))
        return origin(frames[0]).store_id if frames else ""

    async def stop(self) -> None:
        if self._head is not None:
            self._local.on_shown.remove(self.own_events.take)
            self.own_events.stop()
            await asyncio.gather(*self._ending, return_exceptions=True)
            await super().stop()

    @property
    def own(self) -> str:
        """The id of this worker's own store, which identifies the worker in the cluster."""
        return self._own

    @property
    def started(self) -> bool:
        return self._head is not None

    @property
    def next_message(self) -> int:
        """The number, in the stream, of the first message that may not have been stored completely."""
        return max(1, self.event_log.row // INDEXES)

    def expire_before(self, message: int) -> None:
        """Continue at this message, because the stream no longer has earlier ones."""
        row = message * INDEXES - 1
        if self.event_log.row < row:
            log.warning("events were not fetched while the stream had them", from_row=self.event_log.row, to_row=row)
            self.event_log.raise_floor(row)
            self._latest.clear()
            self._visible.clear()

    def owner(self, call_id: str) -> str:
        """The id of the worker that has an open call; empty if it is unknown, or if it is this worker."""
        return self._origins.get(call_id, "")

    def latest_message(self, worker: str) -> int:
        """The number of the worker's latest message in the stream; 0 if none has arrived."""
        return self._messages.get(worker, 0)

    def owners(self) -> set[str]:
        """Workers with open calls, by the ids of their own stores."""
        return {self._origins[call_id] for call_id in self._latest if call_id in self._origins}

    def calls_of(self, worker: str) -> list[CallRecord]:
        """The worker's open calls, by the events received so far."""
        return [record for call_id, record in self._latest.items() if self._origins.get(call_id) == worker]

    def last_partials(self, call_id: str) -> dict[str, TranscriptPartial]:
        """Utterance → its latest partial, for the utterances of an open call that have no final yet."""
        return dict(self._partials.get(call_id, {}))

    # -- from the stream --------------------------------------------------------------------------------------------

    def receive(self, message: int, payload: bytes, traceparent: str = "") -> None:
        """Process a message of the stream, in order; events that arrived before are skipped.

        `traceparent` is the trace context of the call, if it is traced.
        """
        for index, frame in enumerate(payload.decode("utf-8", "replace").split("\n")):
            try:
                event = decode(frame)
                place = Cursor.parse(event.cursor)
            except EventError as error:
                log.error("unreadable event in the stream", message=message, error=str(error))
                continue
            self._messages[place.store_id] = message
            self._receive_event(message * INDEXES + index, place, event, frame, traceparent)

    def pass_(self, message: int) -> None:
        """Record that the message has been processed: its events are queued for the store."""
        self._passed = message
        self._arrived.set()

    async def passed(self, message: int) -> None:
        """Wait until this message has been processed."""
        while self._passed < message:
            self._arrived.clear()
            await self._arrived.wait()

    def _receive_event(self, row: int, place: Cursor, event: Event, frame: str, traceparent: str) -> None:
        call_id = event.call_id
        if type_of(event.body) == CALL_ERASED:
            self._put(row, None, event, frame, place)
            return
        record = self._latest.get(call_id or "")
        if call_id is None or row <= self.event_log.row or call_id in self._ended:
            return
        if record is not None and event.seq <= record.seq:
            return
        try:
            after = calls.apply(record, event)
        except ValueError:
            self.strays += 1
            return
        if isinstance(event.body, TranscriptFinal):
            self._partials.get(call_id, {}).pop(event.body.utterance_id, None)
            self._finished.setdefault(call_id, deque(maxlen=FINISHED)).append(event.body.utterance_id)
            if traceparent and place.store_id != self._own and self._traces is not None:
                self._traced[row] = traceparent, event.body.utterance_id, event.time
        if after.state == "ended":
            self._partials.pop(call_id, None)
            self._finished.pop(call_id, None)
            self._latest.pop(call_id, None)
            self._ended[call_id] = None
            if len(self._ended) > ENDED:
                self._ended.popitem(last=False)
        else:
            self._latest[call_id] = after
            self._origins.setdefault(call_id, place.store_id)
        self._put(row, after, event, frame, place)

    def _put(self, row: int, after: CallRecord | None, event: Event, frame: str, place: Cursor) -> None:
        if row > self.event_log.row:
            self.event_log.put(stored(row, after, event, frame, place, asyncio.get_running_loop().time()))

    def _fan_out(self, entry: Entry) -> None:
        """Show an event to subscribers, once the store has it."""
        self._arrived.set()
        self._note(entry.record)
        if entry.record is not None and entry.record.state == "ended":
            self._origins.pop(entry.record.call_id, None)
        place = entry.origin
        assert place is not None
        if place.store_id == self._own:
            self._early.stored(place.row, waiting=self.own_events.waiting)
            if place.row > self._first_own_row:
                return  # it was shown when this worker produced it
        elif place.store_id == closer_of(self._own) and not self._shows_end(entry):
            return
        self._offer(entry)
        if self._traces is not None and entry.row in self._traced:
            self._traces.on_relayed(*self._traced.pop(entry.row))

    def _shows_end(self, entry: Entry) -> bool:
        """Whether to show an event by which another worker ends a call of this one."""
        shows, call_id = self.own_calls.shows_end(entry), entry.call_id or ""
        self._early.forget(call_id)
        if entry.type == "call.ended" and (record := self.own_calls.close(call_id)) is not None:
            task = asyncio.get_running_loop().create_task(self._end(record), name=f"cluster-end {call_id}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        return shows

    async def _end(self, record: CallRecord) -> None:
        """Show an end for a call of which subscribers here saw more than the worker knew that ended it."""
        history: list[Event] = []
        with contextlib.suppress(StoreError):
            history = await self._local.history(record.call_id)
        for event in lost(record, history, lambda number: self._here()):
            now_s = asyncio.get_running_loop().time()
            self._offer(Entry(None, event.call_id, event.seq, type_of(event.body), encode(event), now_s))

    def receive_partial(self, worker: str, frame: str) -> None:
        """Show a partial of another worker, which comes by core NATS.

        It may arrive after its final, because finals travel through the stream. Such a partial is dropped.
        """
        try:
            event = decode(frame)
        except EventError:
            return
        call_id = event.call_id or ""
        if call_id in self._ended:
            return
        if isinstance(event.body, TranscriptPartial):
            if event.body.utterance_id in self._finished.get(call_id, ()):
                return
            if call_id in self._latest:
                self._partials.setdefault(call_id, {})[event.body.utterance_id] = event.body
        type_ = type_of(event.body)
        key = str(getattr(event.body, "utterance_id", "")) or f"{type_} {event.call_id}"
        now_s = asyncio.get_running_loop().time()
        self._offer(Entry(None, event.call_id, event.seq, type_, frame, now_s, replaces=key))

    # -- of this worker ---------------------------------------------------------------------------------------------

    def _show_own(self, entry: Entry) -> None:
        if entry.row is not None:
            self._own_row = entry.row
        if not self.own_calls.shows(entry):
            return
        if entry.row is None:
            self._offer(entry)
            return
        early = replace(entry, row=None, record=None, origin=Cursor(self._own, entry.row))
        if entry.call_id is not None or entry.type == CALL_ERASED:
            self._early.put(entry.row, early)
        self._offer(early)

    # -- to subscribers ---------------------------------------------------------------------------------------------

    def _here(self) -> Cursor:
        assert self._head is not None, "not started"
        return Cursor(self._head.store_id, self.event_log.visible_row, ((self._own, self._own_row),))

    def _offer(self, entry: Entry) -> None:
        if not self._live:
            return
        live = [each for key in {None, entry.call_id} for each in self._live.get(key, ()) if each.wants(entry)]
        if not live:
            return  # no subscriber here wants the event, which is the usual case
        here = self._here()
        stamped = replace(entry, frame=stamp(entry.frame, str(here)), cursor=here)
        for subscription in live:
            self._offer_to(subscription, stamped)

    def _offer_to(self, subscription: Subscription, entry: Entry) -> None:
        """Pass an event to a subscriber, unless it has received the event at another worker before it resumed here."""
        seen = dict(subscription.resumed.seen)
        if seen:
            if entry.origin is not None and entry.origin.row <= seen.get(entry.origin.store_id, 0):
                return
            assert entry.cursor is not None
            cursor = replace(entry.cursor, seen=merged(entry.cursor.seen, subscription.resumed.seen))
            entry = replace(entry, frame=stamp(entry.frame, str(cursor)), cursor=cursor)
        subscription.offer(entry)

    async def check(self, subscription: Subscription) -> None:
        """Wait until this worker has reached the cursor: the worker that issued it may be a little ahead."""
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while self.event_log.visible_row < subscription.resumed.row:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise ResumeError("unknown cursor") from None
        await super().check(subscription)

    async def page(self, subscription: Subscription) -> list[tuple[int, str]]:
        rows = await self.event_log.page(subscription)
        if rows is None:
            if self._early.lost:
                raise StoreError("the stream has not taken this worker's events for long")
            self._attach(subscription)
            for row, entry in self._early:
                if subscription.wants(entry):
                    there = replace(self._here(), seen=((self._own, row),))
                    self._offer_to(subscription, replace(entry, frame=stamp(entry.frame, str(there)), cursor=there))
            return []
        seen = subscription.resumed.seen
        return [(row, self._page_frame(row, frame, seen)) for row, frame in rows]

    def _page_frame(self, row: int, frame: str, seen: tuple[tuple[str, int], ...]) -> str:
        if not frame:
            return ""
        if seen:
            place = origin(frame)
            if place.row <= dict(seen).get(place.store_id, 0):
                return ""
        return stamp(frame, str(Cursor(self._here().store_id, row, seen)))

    # -- what is known now ------------------------------------------------------------------------------------------

    def call(self, call_id: str) -> CallRecord | None:
        own = None if self.own_calls.ended_elsewhere(call_id) else self._local.call(call_id)
        return own or (None if self._is_own(call_id) else self._visible.get(call_id))

    @property
    def calls(self) -> Collection[CallRecord]:
        others = [record for call_id, record in self._visible.items() if not self._is_own(call_id)]
        own = (each for each in self._local.calls if not self.own_calls.ended_elsewhere(each.call_id))
        return [*others, *own]

    def _is_own(self, call_id: str) -> bool:
        return self._origins.get(call_id) == self._own

    @property
    def _engine(self) -> EngineInfo:
        return self._local.engine
