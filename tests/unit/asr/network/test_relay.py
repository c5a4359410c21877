"""A worker's connection at an engine server, with the engine's end of its link in the hands of the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from asr import messages
from asr.network.relay import WorkerConnection
from asr.utterance import Hypothesis
from config.process import framing
from config.process.tasks import end_tasks
from lab.patience import timeout

ANSWER = messages.Heard(Hypothesis("u", 1, "text", "en", 4, final=True))
BLAME = messages.Working(("u",)), messages.EngineCrashed("it died")


class Relayed:
    """A connection, the worker's end of it, and how its requests are doing."""

    def __init__(self, connection: WorkerConnection, worker: socket.socket) -> None:
        self.connection, self._worker = connection, worker
        self.requests = asyncio.create_task(connection.relay_requests())
        self._frames, self._heard = framing.Frames(), list[messages.FromEngine]()

    async def send(self, *sent: messages.ToEngine) -> None:
        data = b"".join(map(framing.encode, sent))
        await asyncio.get_running_loop().sock_sendall(self._worker, data)

    async def hear(self) -> messages.FromEngine:
        """The next message to the worker. Raises EOFError."""
        while not self._heard:
            async with timeout(20):
                data = await asyncio.get_running_loop().sock_recv(self._worker, 65536)
            if not data:
                raise EOFError
            self._heard += map(messages.decode_from_engine, self._frames.feed(data))
        return self._heard.pop(0)

    async def all(self) -> list[messages.FromEngine]:
        """Everything until the connection is closed."""
        heard = []
        with contextlib.suppress(EOFError):
            while True:
                heard.append(await self.hear())
        return heard


@contextlib.asynccontextmanager
async def relayed() -> AsyncIterator[Relayed]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)
        made = Relayed(WorkerConnection(1, "w", None, reader, writer, framing.Frames()), theirs)
        try:
            yield made
        finally:
            await end_tasks(made.requests)
            writer.transport.abort()


def linked(made: Relayed) -> socket.socket:
    """-> the engine's end of a link that has just been attached."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(20)
    made.connection.attach(ours)
    return theirs


async def received(engine: socket.socket, count: int) -> list[messages.ToEngine]:
    frames, found = framing.Frames(), list[messages.ToEngine]()
    while len(found) < count:
        data = await asyncio.to_thread(engine.recv, 65536)
        found += map(messages.decode_to_engine, frames.feed(data))
    return found


async def test_pings_are_answered_by_the_parent_alone() -> None:
    async with relayed() as made:
        await made.send(messages.Ping())
        assert await made.hear() == messages.Pong() and made.connection.waits
        with linked(made) as engine:
            assert not made.connection.waits
            await made.send(messages.Release("leg"), messages.Ping(), messages.CloseUtterance("u"))
            assert await received(engine, 2) == [messages.Release("leg"), messages.CloseUtterance("u")]
            assert await made.hear() == messages.Pong()


async def test_anything_else_before_there_is_an_engine_makes_no_sense() -> None:
    async with relayed() as made:
        await made.send(messages.Ping(), messages.Release("leg"))
        with pytest.raises(framing.FrameError, match="before the engine is ready"):
            async with timeout(20):
                await asyncio.shield(made.requests)


async def test_a_worker_is_told_what_the_engine_died_over_whatever_has_not_been_read() -> None:
    """Also while it goes on writing to the engine that is gone."""
    async with relayed() as made:
        engine = linked(made)
        engine.sendall(framing.encode(ANSWER))
        await made.send(messages.Withdraw("never read"))
        assert await made.hear() == ANSWER
        engine.close()
        for number in range(20):
            await made.send(messages.Withdraw(f"{number}"), messages.Ping())
            assert await made.hear() == messages.Pong()
        made.connection.end(*BLAME)
        assert await made.all() == list(BLAME)


async def test_a_worker_is_told_what_the_engine_died_over_before_its_link_is_seen_to_end() -> None:
    async with relayed() as made:
        engine = linked(made)
        await made.send(messages.Withdraw("never read"))
        made.connection.end(*BLAME)
        engine.sendall(framing.encode(ANSWER))
        engine.close()
        assert await made.all() == [ANSWER, *BLAME]


async def test_no_answer_is_lost_with_requests_that_a_dead_engine_has_not_read() -> None:
    """Also when the first that the parent notices of the death is that a request cannot be written."""
    async with relayed() as made:
        engine = linked(made)
        await made.send(messages.Withdraw("never read"))
        assert await asyncio.to_thread(engine.recv, 1, socket.MSG_PEEK)
        engine.sendall(framing.encode(ANSWER))
        await made.send(messages.Withdraw("never written"))
        engine.close()
        made.connection.end(*BLAME)
        assert await made.all() == [ANSWER, *BLAME]


async def test_a_worker_that_goes_on_asking_is_told_all_of_it() -> None:
    """A connection that was closed with its requests unread would take the end along."""
    async with relayed() as made:
        engine = linked(made)
        engine.sendall(framing.encode(ANSWER))
        assert await made.hear() == ANSWER
        engine.close()
        made.connection.end(*BLAME)
        for number in range(100):
            await made.send(messages.Withdraw(f"{number}"))
        assert await made.all() == list(BLAME)


async def test_answers_that_are_there_come_before_the_end() -> None:
    async with relayed() as made:
        with linked(made) as engine:
            engine.sendall(framing.encode(ANSWER) * 3)
            made.connection.end(messages.Draining())
            assert (await asyncio.to_thread(engine.recv, 1)) == b"", "nothing more is sent to the engine"
            engine.sendall(framing.encode(ANSWER))
        assert await made.all() == [ANSWER] * 4 + [messages.Draining()]


async def test_one_that_is_let_go_of_while_it_waits_is_told_why() -> None:
    async with relayed() as made:
        made.connection.end(messages.EngineFailed("no weights"))
        assert await made.all() == [messages.EngineFailed("no weights")]
