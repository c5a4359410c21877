"""Reads a stream of JetStream in its order and without gaps.

An ephemeral consumer pushes; its own numbers show what was lost on the way, and heartbeats that it lives. Whatever goes
wrong, another one is made, where its owner says. `messages` reads once what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

import structlog
from nats.aio.msg import Msg
from nats.errors import NotJSMessageError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from config.tasks import end_tasks, lasting, within
from mediaworker.cluster.connection import TROUBLE, NatsConnection, why

HEARTBEAT_S = 1.0
SILENCE_S = 3.5
"""A consumer that gives no sign of life for so long is gone."""
BEGIN_S = 2.0
"""For so long a consumer is waited for. JetStream may give it to a server that has just died, so it is asked again."""
RETRY_S = 0.5
PATIENCE_S = 15.0
"""A stream without a leader comes back within this."""
AT_ONCE = 64
"""Messages; those of uploads have 128 kB."""
log = structlog.get_logger("cluster")


class StreamReader:
    """See the module.

    Args:
        begin: asked before each consumer what it is to deliver: where it begins, and what of the stream.
        begun: told how many messages the stream holds for it then.
        take: takes each message. What it waits for, the stream waits for.
    """

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        *,
        begin: Callable[[], Awaitable[ConsumerConfig]],
        begun: Callable[[int], None],
        take: Callable[[Msg, Msg.Metadata], Awaitable[None]],
    ) -> None:
        self._connection, self._stream = connection, stream
        self._begin, self._begun, self._take = begin, begun, take
        self._task: asyncio.Task[None] | None = None
        self._expected = 1
        """The consumer's own number of the next message."""
        self._broken = asyncio.Event()
        self._heard_s = 0.0

    def start(self) -> None:
        """At the start, and after each loss of the connection."""
        if self._task is None:
            self._task = lasting(self._run, f"cluster-read {self._stream}")
        self._broken.set()

    async def stop(self) -> None:
        await end_tasks(self._task)

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except TROUBLE as error:
                log.info("a stream cannot be read just now", stream=self._stream, reason=why(error))
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        """Until something is wrong."""
        loop, client, js = asyncio.get_running_loop(), self._connection.client, self._connection.js
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=self._on_message)
        try:
            async with asyncio.timeout(BEGIN_S):
                config = await self._begin()
                self._broken.clear()
                self._expected, self._heard_s = 1, loop.time()
                config = config.evolve(
                    deliver_subject=inbox,
                    ack_policy=AckPolicy.NONE,
                    max_deliver=1,
                    flow_control=True,
                    idle_heartbeat=HEARTBEAT_S,
                    num_replicas=1,
                    mem_storage=True,
                )
                consumer = await js.add_consumer(self._stream, config)
            delivered = consumer.delivered.consumer_seq if consumer.delivered is not None else 0
            self._begun((consumer.num_pending or 0) + delivered)
            while not self._broken.is_set():
                silent_s = loop.time() - self._heard_s
                if silent_s >= SILENCE_S:
                    log.info("the stream's consumer is silent: another one is made", silent_s=round(silent_s, 1))
                    return
                async with within(HEARTBEAT_S / 2):
                    await self._broken.wait()
        finally:
            # The consumer goes when nobody listens any more. Whoever could be asked to delete it may be what has gone.
            with contextlib.suppress(*TROUBLE):
                await subscription.unsubscribe()

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
            metadata = message.metadata
        except NotJSMessageError:
            return
        if metadata.sequence.consumer != self._expected:
            log.info("messages of the stream were lost on the way", stream=self._stream, expected=self._expected)
            self._broken.set()
            return
        self._expected += 1
        await self._take(message, metadata)


async def messages(
    connection: NatsConnection, stream: str, subject: str, *, headers_only: bool = False
) -> AsyncGenerator[Msg, None]:
    """What the stream has of the subject, which may have wildcards. Raises what `TROUBLE` names."""
    js = connection.js
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.NONE,
        num_replicas=1,
        mem_storage=True,
        headers_only=headers_only or None,
        inactive_threshold=2 * PATIENCE_S,
    )
    pulled = await js.pull_subscribe(subject, stream=stream, config=config)
    try:
        consumer = await pulled.consumer_info()
        left = consumer.num_pending or 0
        while left > 0:
            some = await pulled.fetch(min(left, AT_ONCE), timeout=PATIENCE_S)
            if not some:  # the consumer has gone with its server, or has sent them to nobody
                raise TimeoutError
            left = some[-1].metadata.num_pending  # less than it was, and less again where others delete meanwhile
            for message in some:
                yield message
        with contextlib.suppress(NotFoundError):
            await js.delete_consumer(stream, consumer.name)
    finally:
        await pulled.unsubscribe()
