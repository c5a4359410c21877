"""The mirror: it reads the stream of all workers' events into `ClusterEvents`, and partials from core NATS."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, DeliverPolicy

from config.metrics.counters import counter
from mediaworker.cluster.connection import NatsConnection
from mediaworker.cluster.directory import CHANGES
from mediaworker.cluster.events import ClusterEvents
from mediaworker.cluster.reader import StreamReader
from mediaworker.events.store import StoreError
from mediaworker.tracing.traces import TRACEPARENT

BACKLOG = 2000
"""The most events that may wait for the disk; above it, reading the stream pauses."""
log = structlog.get_logger("cluster")


@dataclass(slots=True)
class MirrorCounters:
    messages: int = counter("Counts messages of the stream of all workers that have come.")
    consumers: int = counter("Counts how often reading the stream has begun, or begun again.")


class Mirror:
    """Reads the shared stream. `changed` is called with each change of an ended call: its id and the message."""

    def __init__(
        self, connection: NatsConnection, events: ClusterEvents, changed: Callable[[str, bytes], Awaitable[None]]
    ) -> None:
        self.counters = MirrorCounters()
        self._connection, self._events, self._changed = connection, events, changed
        self._reader = StreamReader(
            connection, connection.stream, begin=self._begin, begun=self._on_begun, take=self._on_message
        )

    def start(self) -> None:
        """Start or restart reading: at the start, and after each loss of the connection."""
        self._reader.start()

    async def stop(self) -> None:
        await self._reader.stop()

    async def _begin(self) -> ConsumerConfig:
        connection = self._connection
        await connection.listen(connection.subject("partials", "*"), self._on_partial)
        info = await connection.js.stream_info(connection.stream)
        first = max(self._events.next_message, info.state.first_seq)
        if self._events.next_message < info.state.first_seq:
            self._events.expire_before(info.state.first_seq)
        return ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first)

    def _on_begun(self, waiting: int) -> None:
        self.counters.consumers += 1

    async def _on_message(self, message: Msg, metadata: Msg.Metadata) -> None:
        self.counters.messages += 1
        sequence = metadata.sequence.stream
        *_, worker, call_id = message.subject.split(".")
        if worker == CHANGES:
            await self._change(call_id, message.data)
        else:
            headers = message.headers or {}
            self._events.receive(sequence, message.data, headers.get(TRACEPARENT, ""))
        self._events.pass_(sequence)
        if self._events.event_log.backlog > BACKLOG:
            await self._events.flush()

    async def _change(self, call_id: str, payload: bytes) -> None:
        await self._events.flush()
        try:
            await self._changed(call_id, payload)
        except StoreError as error:
            log.error("a call was not changed", call_id=call_id, reason=str(error))

    async def _on_partial(self, message: Msg) -> None:
        worker = message.subject.rpartition(".")[2]
        if worker != self._events.own:
            for frame in message.data.decode("utf-8", "replace").split("\n"):
                self._events.receive_partial(worker, frame)
