"""The outbox: it publishes this worker's committed events into the shared stream, and its partials by core NATS.

It follows the hub like any subscriber, from the place up to which the stream has acknowledged everything. Each message
holds events of one call, so that a call can be erased from the stream. Only one message per call is in flight at a
time, which keeps a call's events in order; calls do not wait for each other. `on_written` reports the events that have
been sent to NATS: the other workers will receive them even if this worker dies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import structlog
from nats.aio.msg import Msg

from config.metrics.counters import counter
from config.process.tasks import end_tasks, lasting, within
from mediaworker.cluster.connection import TROUBLE, NatsConnection
from mediaworker.events.feed_place import FeedReader
from mediaworker.events.frame import Envelope
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import CALL_ERASED
from mediaworker.events.store import StoreError
from mediaworker.events.subscription import Entry
from mediaworker.tracing.traces import TRACEPARENT, Traces

PLACE = "cluster"
OPEN = 1024
"""The most events in memory that the stream has not acknowledged. Further events stay in the store."""
MESSAGE_BYTES = 256 * 1024
STEPS = 8
"""The number of event loop steps within which NATS's client writes a published message, if its socket is writable."""
TOGETHER_S = 0.005
"""How long partials are collected for a common message."""
PARTIALS = 4096
"""The most partials that wait while NATS is blocked; above it the oldest are dropped."""
RETRY_S = 0.5
ANSWER_S = 2.0
"""The timeout for the stream's acknowledgement. Then the message is sent again; its id prevents a duplicate."""
PROMPT_S = 0.5
"""While the oldest event has waited longer than this for the stream, subscribers do not wait for the outbox."""
TRANSIENT = frozenset({"transcript.partial", "metrics"})
log = structlog.get_logger("cluster")

OF_NO_CALL = "erasures"
"""The subject token that replaces the call id of `call.erased`: erasing the call must not erase this event."""


class _Typed(Envelope, frozen=True, kw_only=True):
    type: str


_envelope = msgspec.json.Decoder(_Typed)


class _Refusal(msgspec.Struct):
    description: str = ""


class _Answer(msgspec.Struct):
    """JetStream's response to a published message (its `PubAck`)."""

    stream: str = ""
    error: _Refusal | None = None


_answer = msgspec.json.Decoder(_Answer)


@dataclass(slots=True)
class OutboxCounters:
    published: int = counter("Counts events that the stream of all workers has taken.")
    messages: int = counter("Counts messages in which they were published.")
    retries: int = counter(
        "Counts times that the stream had refused or not answered some of them, and was asked again."
    )
    skips: int = counter("Counts times that events had gone before the stream could take them.")


class Outgoing(NamedTuple):
    row: int
    call_id: str
    frame: str


@dataclass(slots=True)
class Message:
    events: list[Outgoing]
    """The events of one call, in order."""
    sent_s: float = 0.0
    """When it was sent, by the event loop's clock; 0 if it has not been sent, or was refused."""

    @property
    def call_id(self) -> str:
        return self.events[0].call_id

    @property
    def rows(self) -> str:
        """The first and the last row, which identify the message."""
        return f"{self.events[0].row}-{self.events[-1].row}"


class ClusterOutbox(FeedReader):
    """The outbox. The owner calls `start` once the stream exists; reconnects need no further call."""

    def __init__(
        self,
        hub: EventHub,
        connection: NatsConnection,
        traces: Traces | None = None,
        *,
        on_written: Callable[[int], None],
    ) -> None:
        """`on_written` gets the row up to which all events have been sent; it is not called while NATS is blocked."""
        super().__init__(hub, PLACE, limit=OPEN, pause_s=RETRY_S)
        self.counters = OutboxCounters()
        self._connection, self._traces, self._on_written = connection, traces, on_written
        self._under_way: dict[str, Message] = {}
        """Call id → the message that has been sent without an acknowledgement yet, or that must be sent again."""
        self._waiting: dict[str, deque[Outgoing]] = {}
        """Call id → the events that follow that message."""
        self._transient: deque[str] = deque(maxlen=PARTIALS)
        self._some_transient = asyncio.Event()
        self._inbox = ""
        """The subject of JetStream's responses. (`JetStreamContext.publish_async` does the same at twice the cost.)"""

    @property
    def lag_s(self) -> float:
        """How long the oldest event without an acknowledgement has waited; 0 if there is none."""
        oldest_s = self._place.oldest_s
        return 0.0 if oldest_s is None else max(0.0, asyncio.get_running_loop().time() - oldest_s)

    @property
    def prompt(self) -> bool:
        """Whether an event of now will probably be sent to NATS within milliseconds."""
        return bool(self._tasks) and not self._connection.trouble and self.lag_s < PROMPT_S

    async def start(self) -> None:
        """Begin to follow the hub; a second call changes nothing. Raises StoreError."""
        if self._tasks:
            return
        await self._load(0)
        self._begin()
        self._tasks += [
            lasting(self._publish_again, "cluster: publish again"),
            lasting(self._publish_transient, "cluster: partials"),
        ]
        self._hub.on_shown.append(self._enqueue_transient)

    async def stop(self, within_s: float) -> None:
        """Publish the remaining events for at most `within_s`, and stop."""
        if not self._tasks:
            return
        async with within(within_s):
            while self._place.done_row < self._hub.cursor.row:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        self._hub.on_shown.remove(self._enqueue_transient)
        await end_tasks(*self._tasks)
        with contextlib.suppress(StoreError):
            await self._save()

    # -- from the hub -----------------------------------------------------------------------------------------------

    async def _on_frame(self, row: int, frame: str, *, more: bool) -> None:
        self._enqueue(row, frame)
        if not more or self._full:
            await self._publish([each for each in self._waiting if each not in self._under_way])
        if self._full:
            # A backlog is read in large parts: read one by one, each event would become a message.
            await self._until(lambda: len(self._place) <= OPEN // 2)

    def _enqueue(self, row: int, frame: str) -> None:
        if row <= self._place.read_row:
            return  # `hello`, which is not durable
        envelope = _envelope.decode(frame)
        call_id = OF_NO_CALL if envelope.type == CALL_ERASED else envelope.call_id
        if call_id is None:
            self._place.skip_to(row)  # an event without a call stays here
            return
        self._place.add(row, asyncio.get_running_loop().time())
        self._waiting.setdefault(call_id, deque()).append(Outgoing(row, call_id, frame))

    def _forget(self, call_id: str) -> None:
        message = self._under_way.pop(call_id, None)
        for event in [*(message.events if message is not None else ()), *self._waiting.pop(call_id, ())]:
            self._place.done(event.row)
        self._room.set()

    def _on_again(self, reason: str) -> None:
        log.info("the outbox reads again", reason=reason)

    def _on_skipped(self, reason: str) -> None:
        log.error("events have gone before the cluster could take them", up_to=self._place.read_row)
        self.counters.skips += 1

    # -- to the stream ----------------------------------------------------------------------------------------------

    async def _publish(self, call_ids: Collection[str]) -> None:
        """Publish the next message of each of these calls."""
        messages = []
        for call_id in call_ids:
            messages.append(Message(self._next(call_id)))
            self._under_way[call_id] = messages[-1]
        await self._send(messages)

    def _next(self, call_id: str) -> list[Outgoing]:
        """The call's next events, as many as fit into a message."""
        waiting = self._waiting[call_id]
        events = [waiting.popleft()]
        length = len(events[0].frame)
        while waiting and (length := length + len(waiting[0].frame)) <= MESSAGE_BYTES:
            events.append(waiting.popleft())
        if not waiting:
            del self._waiting[call_id]
        return events

    async def _send(self, messages: Iterable[Message]) -> None:
        """Send messages, for the first time or again. A message that cannot be sent now is retried later."""
        for message in messages:
            if self._under_way.get(message.call_id) is not message:
                continue  # it has been acknowledged or erased meanwhile
            try:
                await self._send_one(message)
                message.sent_s = asyncio.get_running_loop().time()
            except TROUBLE as error:
                log.debug("not published", call_id=message.call_id, reason=str(error))
        with contextlib.suppress(*TROUBLE):
            await self._report_written()

    async def _send_one(self, message: Message) -> None:
        client, call_id = self._connection.client, message.call_id
        self._inbox = self._inbox or client.new_inbox()
        await self._connection.listen(f"{self._inbox}.*.*", self._on_answer)
        headers = {"Nats-Msg-Id": f"{self._store_id}:{message.rows}"}
        if self._traces is not None and (traceparent := self._traces.parent(call_id)):
            headers[TRACEPARENT] = traceparent
        await client.publish(
            self._connection.subject("events", self._store_id, call_id),
            "\n".join(each.frame for each in message.events).encode(),
            reply=f"{self._inbox}.{call_id}.{message.rows}",
            headers=headers,
        )

    async def _report_written(self) -> None:
        """Report the rows sent so far, if NATS's client writes them to its socket at once."""
        client, row = self._connection.client, self._sent_row
        for _ in range(STEPS):
            if not client.pending_data_size:
                self._on_written(row)
                return
            await asyncio.sleep(0)

    @property
    def _sent_row(self) -> int:
        """The row up to which all events have been sent."""
        unsent = [waiting[0].row for waiting in self._waiting.values()]
        unsent += [each.events[0].row for each in self._under_way.values() if not each.sent_s]
        return min(unsent, default=self._place.read_row + 1) - 1

    async def _on_answer(self, answer: Msg) -> None:
        call_id, rows = answer.subject.split(".")[-2:]
        message = self._under_way.get(call_id)
        if message is None or message.rows != rows:
            return  # it has been acknowledged before
        if refused := refusal(answer.data):
            message.sent_s = 0.0
            log.debug("not published", call_id=call_id, reason=refused)
            return
        del self._under_way[call_id]
        for event in message.events:
            self._place.done(event.row)
        self.counters.published += len(message.events)
        self.counters.messages += 1
        self._room.set()
        if call_id in self._waiting:
            await self._publish([call_id])

    async def _publish_again(self) -> None:
        """Send messages again that were refused, or not acknowledged in time."""
        while True:
            await asyncio.sleep(RETRY_S)
            overdue_s = asyncio.get_running_loop().time() - ANSWER_S
            again = [each for each in self._under_way.values() if each.sent_s < overdue_s]
            if again:
                self.counters.retries += 1
                await self._send(again)

    # -- partials ---------------------------------------------------------------------------------------------------

    def _enqueue_transient(self, entry: Entry) -> None:
        if entry.row is None and entry.type in TRANSIENT:
            self._transient.append(entry.frame)
            self._some_transient.set()

    async def _publish_transient(self) -> None:
        """Publish partials without retries, since they are worthless later; those of a few ms share a message."""
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
            subject = self._connection.subject("partials", self._store_id)
            await self._connection.client.publish(subject, "\n".join(frames).encode())


def refusal(answer: bytes) -> str:
    """Why the stream has refused a message; empty if it has accepted it."""
    try:
        found = _answer.decode(answer)
    except msgspec.MsgspecError:
        return "no stream takes it"  # the server's "no responders" notice has an empty body
    if found.error is not None:
        return found.error.description or "refused"
    return "" if found.stream else "not an answer of JetStream"
