"""The reader of a JetStream stream, in order and without gaps.

An ephemeral consumer pushes the messages. The consumer's own sequence numbers show lost messages, and heartbeats show
that it is alive. After any failure the reader creates a new consumer, at the position that its owner gives. `messages`
reads the present content of a stream once.

A consumer reads the copy of the stream that its server has. After a restart or a lost link a server may lack messages
that the others have, and the consumer then leaves them out without a word (seen with nats-server 2.9.10). A reader that
begins at a number therefore follows the stream's numbers as well, and asks the stream's leader about what was left out.
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

from config.process.tasks import end_tasks, lasting, within
from mediaworker.cluster.connection import TROUBLE, NatsConnection, why

HEARTBEAT_S = 1.0
SILENCE_S = 3.5
"""A consumer without a sign of life for this long counts as lost."""
BEGIN_S = 2.0
"""The timeout for creating a consumer. JetStream may place it on a server that has just died, so it is retried."""
RETRY_S = 0.5
PATIENCE_S = 15.0
"""The time within which a stream without a leader gets a new one."""
AT_ONCE = 64
"""The number of messages per fetch; those of uploads have 128 kB each."""
log = structlog.get_logger("cluster")


class StreamReader:
    """Follows a stream until it is stopped.

    Args:
        begin: called before each consumer is created; returns its position in the stream and its filter.
        begun: called with the number of messages that the stream then holds for the consumer.
        take: called with each message. Reading continues when it returns.
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
        """The consumer's own sequence number of the next message."""
        self._next: int | None = None
        """The number in the stream of the next message, unless others delete it; None while the consumer reads from
        elsewhere than a given number, or not all messages."""
        self._broken = asyncio.Event()
        self._received_s = 0.0

    def start(self) -> None:
        """Start reading, or create a new consumer after a loss of the connection."""
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
        """Read with one consumer until it fails."""
        loop, client, js = asyncio.get_running_loop(), self._connection.client, self._connection.js
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=self._on_message)
        try:
            async with asyncio.timeout(BEGIN_S):
                config = await self._begin()
                self._broken.clear()
                self._expected, self._received_s = 1, loop.time()
                self._next = None if config.filter_subject else config.opt_start_seq
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
                silent_s = loop.time() - self._received_s
                if silent_s >= SILENCE_S:
                    log.info("the stream's consumer is silent: another one is made", silent_s=round(silent_s, 1))
                    return
                async with within(HEARTBEAT_S / 2):
                    await self._broken.wait()
        finally:
            # The ephemeral consumer ends by itself without a subscriber. The server that could delete it may be down.
            with contextlib.suppress(*TROUBLE):
                await subscription.unsubscribe()

    async def _on_message(self, message: Msg) -> None:
        self._received_s = asyncio.get_running_loop().time()
        if message.headers and "Status" in message.headers:
            if message.reply:  # flow control: everything before this has been processed
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
        if self._next is not None:
            if metadata.sequence.stream > self._next and await self._left_out(self._next, metadata.sequence.stream):
                self._broken.set()
                return
            self._next = metadata.sequence.stream + 1
        await self._take(message, metadata)

    async def _left_out(self, first: int, end: int) -> bool:
        """Whether the stream has a message from `first` up to the one before `end`. A message that is not there was
        deleted. Without an answer nothing may be passed over, so another consumer has to read from `first` on."""
        try:
            found = await self._connection.js.get_msg(self._stream, seq=first, subject=">", next=True)
        except NotFoundError:
            return False
        except TROUBLE as error:
            log.info("a gap in the stream cannot be explained just now", stream=self._stream, reason=why(error))
            return True
        if found.seq is None or found.seq >= end:
            return False
        log.warning("a server of NATS lacks messages: another consumer is made", stream=self._stream, first=found.seq)
        return True


async def messages(
    connection: NatsConnection, stream: str, subject: str, *, headers_only: bool = False
) -> AsyncGenerator[Msg, None]:
    """The stream's present messages with the subject, which may have wildcards. Raises the errors of `TROUBLE`."""
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
            if not some:  # the consumer was lost with its server, or its messages were lost
                raise TimeoutError
            left = some[-1].metadata.num_pending  # it falls with each batch, and when others delete messages
            for message in some:
                yield message
        with contextlib.suppress(NotFoundError):
            await js.delete_consumer(stream, consumer.name)
    finally:
        await pulled.unsubscribe()
