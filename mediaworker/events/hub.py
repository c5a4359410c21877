"""The event hub of a worker: it numbers the events of its own calls, has them stored, and fans them out.

A subscriber sees a durable event only after it is on disk, and all events in the order in which they were published.
While the disk refuses events, subscribers see them all the same, with `stored` false.

At each start, row ids begin at the wall clock in microseconds, and above the ids that the start before had reserved.
So an event that was seen and then lost (a full disk followed by a kill, or a power cut) never shares its id with a
later event, and the hub recognises a cursor to a lost event as unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import structlog
from msgspec import structs

from config import Settings
from config.metrics.counters import Histogram
from config.metrics.registry import MetricsRegistry
from mediaworker.events import call_record as calls
from mediaworker.events import schema
from mediaworker.events.frame import encode, printable, timestamp
from mediaworker.events.store import EventStore
from mediaworker.events.stored_events import StoredEvents
from mediaworker.events.subscription import Entry

log = structlog.get_logger()


class EventHub(StoredEvents):
    """The events of this worker's own calls."""

    def __init__(self, settings: Settings, store: EventStore, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(settings, store, clock=clock)
        self.engine = schema.EngineInfo(name="", state="idle")
        self.published = dict.fromkeys(sorted(schema.TYPES - {"hello", "lagged"}), 0)
        """The number of published events by type."""
        self.strays = 0
        self.delay_s = Histogram()
        """The time from `publish` to the fan-out of each event."""
        self.final_commit_s, self.final_fan_out_s = Histogram(), Histogram()
        """The two parts of a final's delay: from `publish` to the end of its commit, and from there until it has been
        offered to the last subscriber."""
        self._latest: dict[str, schema.CallRecord] = {}
        """The open calls, as of the last published event."""
        self.on_shown: list[Callable[[Entry], None]] = []
        """Called with each event that subscribers are sent."""

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counter("events_published", "Counts published events by type.", lambda: self.published, "type")
        metrics.counter(
            "events_stray",
            "Counts events that were dropped because their call had not begun or had already ended.",
            lambda: self.strays,
        )
        metrics.gauge(
            "event_subscribers", "Shows how many connections to /v1/events are open.", lambda: self.subscribers
        )
        metrics.counter(
            "event_subscribers_overrun",
            "Counts subscribers that were closed because they were too slow.",
            lambda: self.overruns,
        )
        metrics.counter(
            "event_partials_dropped", "Counts partials that were dropped for slow subscribers.", lambda: self.dropped
        )
        metrics.histogram(
            "event_delay_seconds",
            "Measures the time from an event's publication until it is sent to subscribers.",
            self.delay_s,
        )
        self.event_log.add_metrics(metrics)
        self.store.add_metrics(metrics)

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store and end the calls that a dead process left open. Raises StoreError."""
        head = self._head = await self.store.start()
        # Above every id that a subscriber may have seen: a power cut may have lost the last events and set back the
        # clock.
        first_row = max(head.row + 1, head.reserved + 1, int(self._clock() * 1_000_000))
        self.event_log.begin(head, first_row)
        self._worker_seq = head.worker_seq
        for record in head.open_calls:
            self._latest[record.call_id] = self._visible[record.call_id] = record
        for record in head.open_calls:
            for body in calls.closing(record, await self.history(record.call_id)):
                self.publish(record.call_id, record.at_ms, body)
        if head.open_calls:
            log.warning("calls were open when the worker last stopped", calls=len(head.open_calls))
        self._watch_store()
        await self.flush()

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self, call_id: str | None, at_ms: int, body: schema.EventBody) -> None:
        """Number the event and queue it for the disk and the subscribers. Never blocks.

        An event before its call's `call.started` or after its `call.ended` is dropped and counted. `CallErased` is the
        exception: its call no longer exists.
        """
        record = None if call_id is None else self._latest.get(call_id)
        if (
            call_id is not None
            and not isinstance(body, schema.CallErased)
            and (record.state == "ended" if record is not None else not isinstance(body, schema.CallStarted))
        ):
            self.strays += 1
            log.debug("event outside its call", call_id=call_id, type=schema.type_of(body))
            return
        self.published[schema.type_of(body)] += 1
        if isinstance(body, schema.EngineState):
            self.engine = structs.replace(self.engine, name=body.engine or self.engine.name, state=body.state)
        self.event_log.put(self._entry(call_id, at_ms, body, record))

    def _entry(
        self, call_id: str | None, at_ms: int, body: schema.EventBody, record: schema.CallRecord | None
    ) -> Entry:
        assert self._head is not None, "the hub has not been started"
        kind, durable, about = schema.type_of(body), schema.is_durable(body), call_id
        if isinstance(body, schema.CallErased):
            call_id = None
        seq = self._worker_seq if call_id is None else 0 if record is None else record.seq
        row = self.event_log.row
        if durable:
            row, seq = self.event_log.next_row, seq + 1
        event = schema.Event(f"{self._head.store_id}:{row}", about, seq, at_ms, timestamp(self._clock()), body)
        try:
            frame = encode(event)
        except UnicodeEncodeError:
            event = replace(event, body=printable(body))
            frame = encode(event)
        published_s = asyncio.get_running_loop().time()
        if not durable:
            key = body.utterance_id if isinstance(body, schema.TranscriptPartial) else f"{kind} {call_id}"
            return Entry(None, call_id, seq, kind, frame, published_s, replaces=key)
        after = None
        if call_id is None:
            self._worker_seq = seq
        else:
            after = self._latest[call_id] = calls.apply(record, event)
        return Entry(row, call_id, seq, kind, frame, published_s, record=after)

    @property
    def _engine(self) -> schema.EngineInfo:
        return self.engine

    def _fan_out(self, entry: Entry) -> None:
        now_s = asyncio.get_running_loop().time()
        self.delay_s.observe(now_s - entry.published_s)
        self._note(entry.record)
        if entry.record is not None and entry.record.state == "ended":
            self._latest.pop(entry.record.call_id, None)
        shown = entry
        if entry.row is not None and self.event_log.is_unsaved(entry):
            self.event_log.unstored += 1
            shown = replace(entry, frame=self.event_log.frame(entry))
        self._offer(shown)
        for show in self.on_shown:
            show(shown)
        if entry.type == "transcript.final":
            self.final_commit_s.observe(now_s - entry.published_s)
            self.final_fan_out_s.observe(asyncio.get_running_loop().time() - now_s)
