"""Reads the stream of all workers' events, in its order and without gaps, into `ClusterEvents`.

An ephemeral consumer pushes; its own numbers show what was lost on the way, and heartbeats that it lives. Whatever goes
wrong, another one is made that begins where this one has come to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import NotJSMessageError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError

from config.counters import counter
from mediaworker.cluster.connection import ClusterUnreachable, NatsConnection
from mediaworker.cluster.directory import CHANGES
from mediaworker.cluster.events import ClusterEvents
from mediaworker.events.store import StoreError

HEARTBEAT_S = 1.0
SILENCE_S = 3.5
"""A consumer that gives no sign of life for so long is gone."""
RETRY_S = 0.5
BACKLOG = 2000
"""Events that may wait for the disk; then the stream waits."""
log = structlog.get_logger("cluster")


@dataclass(slots=True)
class MirrorCounters:
    messages: int = counter("Counts messages of the stream of all workers that have come.")
    consumers: int = counter("Counts how often reading the stream has begun, or begun again.")


class Mirror:
    """`changed` takes what has been done to an ended call: its id, and the message."""

    def __init__(
        self,
        connection: NatsConnection,
        events: ClusterEvents,
        changed: Callable[[str, bytes], Awaitable[None]],
    ) -> None:
        self.counters = MirrorCounters()
        self._connection, self._events, self._changed = connection, events, changed
        self._task: asyncio.Task[None] | None = None
        self._partials: Subscription | None = None
        self._expected = 1
        """The consumer's own number of the next message."""
        self._broken = asyncio.Event()
        self._heard_s = 0.0

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="cluster-mirror")
        self._broken.set()  # the connection is another one

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(ClusterUnreachable, APIError, nats.errors.Error, OSError):
                await self._follow()
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        """Until something is wrong."""
        connection, loop = self._connection, asyncio.get_running_loop()
        client, js = connection.client, connection.js
        if self._partials is None:
            self._partials = await client.subscribe(connection.subject("partials", "*"), cb=self._on_partial)
        info = await js.stream_info(connection.stream)
        first = max(self._events.next_message, info.state.first_seq)
        if self._events.next_message < info.state.first_seq:
            self._events.expire_before(info.state.first_seq)
        self._broken.clear()
        self._expected, self._heard_s = 1, loop.time()
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=self._on_message)
        consumer = None
        try:
            config = ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=first,
                deliver_subject=inbox,
                ack_policy=AckPolicy.NONE,
                max_deliver=1,
                flow_control=True,
                idle_heartbeat=HEARTBEAT_S,
                num_replicas=1,
                mem_storage=True,
            )
            consumer = await js.add_consumer(connection.stream, config)
            self.counters.consumers += 1
            while not self._broken.is_set():
                silent_s = loop.time() - self._heard_s
                if silent_s >= SILENCE_S:
                    log.info("the stream's consumer is silent: another one is made", silent_s=round(silent_s, 1))
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._broken.wait(), HEARTBEAT_S / 2)
        finally:
            with contextlib.suppress(ClusterUnreachable, APIError, nats.errors.Error, OSError):
                await subscription.unsubscribe()
                if consumer is not None:
                    await js.delete_consumer(connection.stream, consumer.name)

    async def _on_message(self, message: Msg) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        if message.headers and "Status" in message.headers:
            if message.reply:  # flow control: what came before has been taken
                await message.respond(b"")
            elif stalled := message.headers.get("Nats-Consumer-Stalled"):
                await self._connection.client.publish(stalled)
            return
        if self._broken.is_set():
            return
        try:
            sequence = message.metadata.sequence
        except NotJSMessageError:
            return
        if sequence.consumer != self._expected:
            log.info("messages of the stream were lost on the way", expected=self._expected, got=sequence.consumer)
            self._broken.set()
            return
        self._expected += 1
        self.counters.messages += 1
        *_, worker, call_id = message.subject.split(".")
        if worker == CHANGES:
            await self._change(call_id, message.data)
        else:
            self._events.receive(sequence.stream, message.data)
        self._events.pass_(sequence.stream)
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
            self._events.receive_partial(worker, message.data.decode("utf-8", "replace"))
