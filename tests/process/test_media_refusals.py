"""Media connections beyond the limit: each client sees why it was refused, and a flood of them is held for nobody."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import uvloop
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from config.load import parse
from lab.http.media_shells import until
from lab.patience import seconds
from mediaworker.access.connections import ConnectionLimit
from mediaworker.ingress.listener import MediaListener
from mediaworker.ingress.runner import Throttle


@asynccontextmanager
async def full() -> AsyncIterator[MediaListener]:
    """A listener whose only place for this address is taken, by a peer that says nothing."""
    media = {"host": "127.0.0.1", "port": 0, "max_connections": 2, "start_timeout_s": 600}
    listener = MediaListener(parse({"media": media}).media, {}, Throttle())
    await listener.start()
    with dial(listener):
        await until(lambda: listener.limit.open == 1)
        try:
            yield listener
        finally:
            await listener.stop()


def dial(listener: MediaListener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port), seconds(30))


def test_a_refused_client_sees_why() -> None:
    async def ask() -> list[int]:
        async with full() as listener:
            found = []
            for size in (1, 100, 4000) * 20:
                with pytest.raises(InvalidStatus) as refused:
                    await connect(f"ws://127.0.0.1:{listener.port}/x", additional_headers={"X": "y" * size})
                found.append(refused.value.response.status_code)
            await until(lambda: listener.refused_places.open == 0)
            return found

    assert uvloop.run(ask()) == [503] * 60


async def test_a_peer_is_not_answered_before_it_has_asked_and_is_not_waited_for() -> None:
    async with full() as listener:
        with dial(listener) as peer, dial(listener) as silent:
            await until(lambda: listener.refused_places.open == 2)
            for each in (peer, silent):
                each.setblocking(False)
                with pytest.raises(BlockingIOError):
                    each.recv(1)
                each.settimeout(seconds(30))
            peer.sendall(b"GET /")
            assert (await asyncio.to_thread(peer.recv, 4096)).startswith(b"HTTP/1.1 503 ")
            assert await asyncio.to_thread(silent.recv, 1) == b""
        await until(lambda: listener.refused_places.open == 0)


async def test_only_so_many_are_heard_out() -> None:
    async with full() as listener:
        listener.refused_places = ConnectionLimit(4, 2)
        with ExitStack() as held:
            peers = [held.enter_context(dial(listener)) for _ in range(6)]
            await until(lambda: listener.limit.refused["peer"] == 6)
            assert listener.refused_places.open == 2
            for peer in peers[2:]:
                assert (await asyncio.to_thread(peer.recv, 4096)).startswith(b"HTTP/1.1 503 ")
        await until(lambda: listener.refused_places.open == 0)
