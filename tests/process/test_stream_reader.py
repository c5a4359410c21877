"""The reader of a stream and a real NATS: it leaves no message out, and does not wait for deleted ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, DeliverPolicy

from config.settings import Cluster
from lab.network.nats_servers import NatsServer, nats
from lab.patience import eventually, timeout
from mediaworker.cluster.connection import NatsConnection
from mediaworker.cluster.reader import StreamReader

MESSAGES = 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats(tmp_path / "nats") as (only,):
        yield only


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[NatsConnection]:
    """A connection whose stream has `MESSAGES` messages."""
    ready = asyncio.Event()

    async def on_ready() -> None:
        await made.stream_id()
        ready.set()

    made = NatsConnection(Cluster(nats=(server.url,), replicas=1), worker="w", on_ready=on_ready)
    made.start()
    async with timeout(30):
        await ready.wait()
    for number in range(1, MESSAGES + 1):
        await made.js.publish(made.subject("events", "w", "call"), str(number).encode())
    yield made
    await made.stop()


class Reading:
    """What one reader has read, and how often it has begun."""

    def __init__(self, connection: NatsConnection) -> None:
        self.numbers: list[int] = []
        self.consumers = 0
        self.reader = StreamReader(
            connection, connection.stream, begin=self._begin, begun=self._on_begun, take=self._take
        )

    async def _begin(self) -> ConsumerConfig:
        first = self.numbers[-1] + 1 if self.numbers else 1
        return ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first)

    def _on_begun(self, waiting: int) -> None:
        self.consumers += 1

    async def _take(self, message: Msg, metadata: Msg.Metadata) -> None:
        assert int(message.data) == metadata.sequence.stream
        self.numbers.append(metadata.sequence.stream)

    async def until(self, number: int) -> None:
        self.reader.start()
        await eventually(lambda: self.numbers[-1:] == [number])
        await self.reader.stop()


async def test_what_a_server_lacks_is_read_from_another_consumer(
    connection: NatsConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = JetStreamContext.add_consumer

    async def lacking(js: JetStreamContext, stream: str, config: ConsumerConfig) -> ConsumerInfo:
        """The first consumer is on a server whose copy of the stream begins later than was asked for."""
        if not reading.consumers:
            config = config.evolve(opt_start_seq=5)
        return await create(js, stream, config)

    monkeypatch.setattr(JetStreamContext, "add_consumer", lacking)
    reading = Reading(connection)
    await reading.until(MESSAGES)
    assert reading.numbers == [*range(1, MESSAGES + 1)]
    assert reading.consumers == 2


async def test_deleted_messages_are_passed_over(connection: NatsConnection) -> None:
    for number in (1, 4, 5):
        assert await connection.js.delete_msg(connection.stream, number)
    reading = Reading(connection)
    await reading.until(MESSAGES)
    assert reading.numbers == [2, 3, 6, 7, 8]
    assert reading.consumers == 1
