"""Publishes what this worker has committed into the stream of all, and its partials to whoever listens just now.

No final waits for it: it follows the hub like any subscriber, from the place up to which the stream has taken all. A
call's events keep their order; each message holds events of one call, so that a call can be erased from the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import structlog

from config.counters import counter
from config.tasks import end_tasks
from mediaworker.cluster.connection import TROUBLE, NatsConnection
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import TYPES, Envelope
from mediaworker.events.store import StoreError
from mediaworker.events.subscription import Cursor, ResumeError, SubscriptionClosed
from mediaworker.ops.traces import TRACEPARENT, Traces

PLACE = "cluster"
WAVE = 256
"""Events that are published together; the next begin when JetStream has taken all of them."""
MESSAGE_BYTES = 256 * 1024
TOGETHER_S = 0.005
"""Partials wait so long for each other."""
SAVE_S = 1.0
RETRY_S = 0.5
ANSWER_S = 2.0
"""The stream has not taken a message that it has not acknowledged by then. It is sent again, which makes no double."""
TRANSIENT = frozenset({"transcript.partial", "metrics"})
DURABLE = TYPES - {"transcript.partial", "hello", "lagged"}
DURABLE_METRICS = '"durable":true'
log = structlog.get_logger("cluster")

_envelope = msgspec.json.Decoder(Envelope)


@dataclass(slots=True)
class OutboxCounters:
    published: int = counter("Counts events that the stream of all workers has taken.")
    messages: int = counter("Counts messages in which they were published.")
    retries: int = counter("Counts times that the stream took a part of them only, or none, and was asked again.")
    skips: int = counter("Counts times that events had gone before the stream could take them.")


class Outgoing(NamedTuple):
    row: int
    call_id: str
    frame: str


class Outbox:
    """`start` when the stream is there; it goes on by itself from then on."""

    def __init__(self, hub: EventHub, connection: NatsConnection, traces: Traces | None = None) -> None:
        self.counters = OutboxCounters()
        self._hub, self._connection, self._traces = hub, connection, traces
        self._store_id = ""
        self._place = self._saved = 0
        self._since_s = 0.0
        """When the events that are being published began to be; 0: none are."""
        self._transient: deque[str] = deque()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def lag_s(self) -> float:
        """For how long the oldest event has waited that the stream has not taken; 0: it has all."""
        return max(0.0, asyncio.get_running_loop().time() - self._since_s) if self._since_s else 0.0

    async def start(self) -> None:
        """Raises StoreError."""
        if self._tasks:
            return
        self._store_id = self._hub.cursor.store_id
        saved: int | None = await self._hub.read(lambda database: database.place(PLACE))
        self._place = self._saved = saved or 0
        create = asyncio.get_running_loop().create_task
        self._tasks = [
            create(self._publish_all(), name="cluster-outbox"),
            create(self._publish_transient(), name="cluster-partials"),
            create(self._remember(), name="cluster-place"),
        ]

    async def stop(self, within_s: float) -> None:
        """Publish what is left, as long as that takes no more than this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._tasks and self._place < self._hub.cursor.row:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        await end_tasks(*self._tasks)
        with contextlib.suppress(StoreError):
            await self._save()

    async def _publish_all(self) -> None:
        while True:
            try:
                async for wave in self._waves():
                    self._since_s = asyncio.get_running_loop().time()
                    await self._publish(wave)
                    self._place, self._since_s = wave[-1].row, 0.0
            except ResumeError:
                # Its events have expired or were erased while nobody could take them.
                self._skip()
            except (SubscriptionClosed, StoreError) as error:
                log.info("the outbox reads again", reason=str(error))
            await asyncio.sleep(RETRY_S)

    async def _waves(self) -> AsyncIterator[list[Outgoing]]:
        subscription = self._hub.subscribe(after=str(Cursor(self._store_id, self._place)), types=DURABLE)
        durable: asyncio.Queue[Outgoing] = asyncio.Queue(WAVE)

        async def read() -> None:
            read_row = self._place
            frames = aiter(subscription)
            await anext(frames)  # hello
            async for frame in frames:
                envelope = _envelope.decode(frame)
                row = Cursor.parse(envelope.cursor).row
                if row > read_row:  # the others are not durable, and carry the last cursor
                    read_row = row
                    await durable.put(Outgoing(row, envelope.call_id or "", frame))

        reading = asyncio.get_running_loop().create_task(read(), name="cluster-outbox-read")
        try:
            while True:
                getting = asyncio.ensure_future(durable.get())
                await asyncio.wait({getting, reading}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    reading.result()
                    return
                wave = [getting.result()]
                while len(wave) < WAVE and not durable.empty():
                    wave.append(durable.get_nowait())
                yield wave
        finally:
            subscription.close()
            await end_tasks(reading)

    async def _publish(self, wave: list[Outgoing]) -> None:
        """Until the stream has taken it, however long that takes."""
        left = _messages(wave)
        while left:
            # One message of a call at a time: a later one must not be taken while an earlier one is tried again.
            first: dict[str, list[Outgoing]] = {}
            for message in left:
                first.setdefault(message[0].call_id, message)
            taken = await asyncio.gather(*map(self._send, first.values()))
            done = {id(message) for message, ok in zip(first.values(), taken, strict=True) if ok}
            left = [message for message in left if id(message) not in done]
            if not all(taken):
                self.counters.retries += 1
                await asyncio.sleep(RETRY_S)
        self.counters.published += len(wave)

    async def _send(self, events: list[Outgoing]) -> bool:
        first, last = events[0], events[-1]
        subject = self._connection.subject("events", self._store_id, first.call_id)
        headers = {"Nats-Msg-Id": f"{self._store_id}:{first.row}-{last.row}"}
        if self._traces is not None and (traceparent := self._traces.parent(first.call_id)):
            headers[TRACEPARENT] = traceparent
        try:
            await self._connection.js.publish(
                subject, "\n".join(each.frame for each in events).encode(), timeout=ANSWER_S, headers=headers
            )
        except TROUBLE as error:
            log.debug("not published", reason=str(error))
            return False
        self.counters.messages += 1
        return True

    async def _publish_transient(self) -> None:
        """Partials: whoever does not hear them now never will."""
        while True:
            with contextlib.suppress(SubscriptionClosed, StoreError):
                subscription = self._hub.subscribe(types=TRANSIENT)
                try:
                    frames = aiter(subscription)
                    await anext(frames)  # hello
                    sending: asyncio.Task[None] | None = None
                    async for frame in frames:
                        if DURABLE_METRICS not in frame:
                            self._transient.append(frame)
                            if sending is None or sending.done():
                                sending = asyncio.create_task(self._send_transient(), name="cluster-partials")
                finally:
                    subscription.close()
            await asyncio.sleep(RETRY_S)

    async def _send_transient(self) -> None:
        """Those of some milliseconds in one message."""
        await asyncio.sleep(TOGETHER_S)
        while self._transient:
            frames, length = list[str](), 0
            while self._transient and length < MESSAGE_BYTES:
                frames.append(self._transient.popleft())
                length += len(frames[-1])
            with contextlib.suppress(*TROUBLE):
                await self._connection.client.publish(self._partials, "\n".join(frames).encode())

    @property
    def _partials(self) -> str:
        return self._connection.subject("partials", self._store_id)

    def _skip(self) -> None:
        floor = self._hub.event_log.floor
        log.error("events have gone before the cluster could take them", up_to=floor)
        self.counters.skips += 1
        self._place = max(self._place, floor)

    async def _remember(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            with contextlib.suppress(StoreError):
                await self._save()

    async def _save(self) -> None:
        place = self._place
        if place != self._saved:
            await self._hub.maintain(lambda database: database.keep_place(PLACE, place))
            self._saved = place


def _messages(wave: list[Outgoing]) -> list[list[Outgoing]]:
    """Of each call its events in their order, in messages that are not too long. Events without a call stay here."""
    calls: dict[str, list[list[Outgoing]]] = {}
    for event in wave:
        if not event.call_id:
            continue
        messages = calls.setdefault(event.call_id, [[]])
        if messages[-1] and sum(len(each.frame) for each in messages[-1]) + len(event.frame) > MESSAGE_BYTES:
            messages.append([])
        messages[-1].append(event)
    return [message for messages in calls.values() for message in messages]
