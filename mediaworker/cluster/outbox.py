"""Publishes what this worker has committed into the stream of all, and its partials to whoever listens just now.

No final waits for it: it follows the hub like any subscriber, from the place up to which the stream has taken all. A
call's events keep their order; each message holds events of one call, so that a call can be erased from the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import structlog
from nats.aio.msg import Msg

from config.counters import counter
from config.tasks import end_tasks
from mediaworker.cluster.connection import TROUBLE, NatsConnection
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import TYPES, Envelope
from mediaworker.events.store import StoreError
from mediaworker.events.subscription import Cursor, Entry, ResumeError, SubscriptionClosed
from mediaworker.ops.traces import TRACEPARENT, Traces

PLACE = "cluster"
WAVE = 256
"""Events that are published together; the next begin when JetStream has taken all of them."""
MESSAGE_BYTES = 256 * 1024
TOGETHER_S = 0.005
"""Partials wait so long for each other."""
PARTIALS = 4096
"""So many wait while NATS takes nothing: the oldest go."""
SAVE_S = 1.0
RETRY_S = 0.5
ANSWER_S = 2.0
"""The stream has not taken a message that it has not acknowledged by then. It is sent again, which makes no double."""
TRANSIENT = frozenset({"transcript.partial", "metrics"})
DURABLE = TYPES - {"transcript.partial", "hello", "lagged"}
log = structlog.get_logger("cluster")

_envelope = msgspec.json.Decoder(Envelope)


class _Refusal(msgspec.Struct):
    description: str = ""


class _Answer(msgspec.Struct):
    """Of JetStream to what is published (its `PubAck`)."""

    stream: str = ""
    error: _Refusal | None = None


_answer = msgspec.json.Decoder(_Answer)


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
        self._transient: deque[str] = deque(maxlen=PARTIALS)
        self._some_transient = asyncio.Event()
        self._inbox = ""
        """Where JetStream answers. (`JetStreamContext.publish_async` does the same; this costs half as much.)"""
        self._answers: dict[str, asyncio.Future[bytes]] = {}
        """By the rows of what was published."""
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
        self._hub.on_shown.append(self._take_transient)

    async def stop(self, within_s: float) -> None:
        """Publish what is left, as long as that takes no more than this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._tasks and self._place < self._hub.cursor.row:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        if self._tasks:
            self._hub.on_shown.remove(self._take_transient)
        await end_tasks(*self._tasks)
        with contextlib.suppress(StoreError):
            await self._save()

    async def _publish_all(self) -> None:
        while True:
            try:
                async with contextlib.aclosing(self._waves()) as waves:
                    async for wave in waves:
                        self._since_s = asyncio.get_running_loop().time()
                        await self._publish(wave)
                        self._place, self._since_s = wave[-1].row, 0.0
            except ResumeError:
                # Its events have expired or were erased while nobody could take them.
                self._skip()
            except (SubscriptionClosed, StoreError) as error:
                log.info("the outbox reads again", reason=str(error))
            await asyncio.sleep(RETRY_S)

    async def _waves(self) -> AsyncGenerator[list[Outgoing], None]:
        """What the hub has shown since the last wave."""
        subscription = self._hub.subscribe(after=str(Cursor(self._store_id, self._place)), types=DURABLE)
        try:
            wave, read_row = list[Outgoing](), self._place
            async for frame in subscription:
                row = subscription.cursor.row
                if row > read_row:  # the others, `hello` among them, are not durable
                    read_row = row
                    wave.append(Outgoing(row, _envelope.decode(frame).call_id or "", frame))
                if wave and (len(wave) == WAVE or not subscription.waiting):
                    yield wave
                    wave = []
        finally:
            subscription.close()

    async def _publish(self, wave: list[Outgoing]) -> None:
        """Until the stream has taken it, however long that takes."""
        left = _messages(wave)
        while left:
            # One message of a call at a time: a later one must not be taken while an earlier one is tried again.
            first: dict[str, list[Outgoing]] = {}
            for message in left:
                first.setdefault(message[0].call_id, message)
            taken = await self._send(first.values())
            left = [message for message in left if id(message) not in taken]
            if len(taken) < len(first):
                self.counters.retries += 1
                await asyncio.sleep(RETRY_S)
        self.counters.published += len(wave)

    async def _send(self, messages: Collection[list[Outgoing]]) -> set[int]:
        """-> the ids of those that the stream has taken."""
        sent: list[tuple[list[Outgoing], asyncio.Future[bytes]]] = []
        taken, trouble = set[int](), ""
        try:
            with contextlib.suppress(*TROUBLE):
                for message in messages:
                    sent.append((message, await self._sent(message)))
            if sent:
                await asyncio.wait([answer for _, answer in sent], timeout=ANSWER_S)
        finally:
            self._answers.clear()
        for message, answer in sent:
            if refused := refusal(answer.result()) if answer.done() else "no answer":
                trouble = refused
            else:
                taken.add(id(message))
        if trouble:
            log.debug("not published", reason=trouble)
        self.counters.messages += len(taken)
        return taken

    async def _sent(self, events: list[Outgoing]) -> asyncio.Future[bytes]:
        """-> the stream's answer, when it comes."""
        client = self._connection.client
        if not self._inbox:
            inbox = client.new_inbox()
            await client.subscribe(f"{inbox}.*", cb=self._answered)
            self._inbox = inbox
        first, last = events[0], events[-1]
        subject = self._connection.subject("events", self._store_id, first.call_id)
        place = f"{first.row}-{last.row}"
        headers = {"Nats-Msg-Id": f"{self._store_id}:{place}"}
        if self._traces is not None and (traceparent := self._traces.parent(first.call_id)):
            headers[TRACEPARENT] = traceparent
        answer = self._answers[place] = asyncio.get_running_loop().create_future()
        payload = "\n".join(each.frame for each in events).encode()
        await client.publish(subject, payload, reply=f"{self._inbox}.{place}", headers=headers)
        return answer

    async def _answered(self, answer: Msg) -> None:
        waiting = self._answers.get(answer.subject.rpartition(".")[2])
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.data)

    def _take_transient(self, entry: Entry) -> None:
        if entry.row is None and entry.type in TRANSIENT:
            self._transient.append(entry.frame)
            self._some_transient.set()

    async def _publish_transient(self) -> None:
        """Partials: whoever does not hear them now never will. Those of some milliseconds share a message."""
        while True:
            await self._some_transient.wait()
            await asyncio.sleep(TOGETHER_S)
            with contextlib.suppress(*TROUBLE):
                await self._send_transient()

    async def _send_transient(self) -> None:
        self._some_transient.clear()
        while self._transient:
            frames, length = list[str](), 0
            while self._transient and length < MESSAGE_BYTES:
                frames.append(self._transient.popleft())
                length += len(frames[-1])
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


def refusal(answer: bytes) -> str:
    """Why the stream has not taken a message; empty: it has."""
    try:
        found = _answer.decode(answer)
    except msgspec.MsgspecError:
        return "no stream takes it"  # the server's notice to a message that nobody has asked for has no body
    if found.error is not None:
        return found.error.description or "refused"
    return "" if found.stream else "not an answer of JetStream"
