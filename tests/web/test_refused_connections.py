"""HTTP connections beyond the limit: each peer sees why it was refused, and a flood of them is not read for long."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from lab.events.samples import until
from lab.http.api_server import Running, running_api
from lab.patience import seconds, timeout
from mediaworker.access.connections import ConnectionLimit
from mediaworker.http import request_watch

PLACES = 4
HOST = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /v1/jobs" + HOST
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAA=\r\n"
)


@asynccontextmanager
async def full(directory: Path, header_timeout_s: int = 600) -> AsyncIterator[Running]:
    """A server whose places are all taken, by peers that say nothing."""
    http = {"host": "127.0.0.1", "port": 0, "max_connections": 2 * PLACES, "header_timeout_s": header_timeout_s}
    async with running_api(directory, http=http) as api:
        with ExitStack() as held:
            for _ in range(PLACES):  # one address may have half of them
                held.enter_context(dial(api))
            await until(lambda: api.server.guard.limit.open == PLACES)
            yield api


def dial(api: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", api.server.port), seconds(30))


def ask(api: Running, sent: bytes, *, half_close: bool = False) -> bytes:
    """What comes, to the end, for a peer that reads when it has sent everything. Raises ConnectionError."""
    with dial(api) as peer:
        peer.sendall(sent)
        if half_close:
            peer.shutdown(socket.SHUT_WR)
        answer = b""
        while data := peer.recv(65536):
            answer += data
        return answer


def chunked(size: int) -> bytes:
    return POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size + bytes(size) + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("half_close", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz" + HOST + b"\r\n",
        b"GET /v1/events" + HOST + UPGRADE + b"\r\n",
        POST + b"Content-Length: 4000000\r\n\r\n" + bytes(4_000_000),
        POST + b"Content-Length: 80000000\r\n\r\n" + bytes(80_000_000),
        POST + b"Expect: 100-continue\r\nContent-Length: 4000000\r\n\r\n" + bytes(4_000_000),
        chunked(4_000_000),
        POST + b"X: " + b"y" * 4_000_000,
        b"nonsense\r\n\r\n" + bytes(4_000_000),
    ],
    ids=["get", "websocket", "4 MB", "80 MB", "expects", "chunked", "head", "nonsense"],
)
async def test_a_refused_peer_sees_why(tmp_path: Path, sent: bytes, half_close: bool) -> None:
    async with full(tmp_path) as api:
        answer = await asyncio.to_thread(ask, api, sent, half_close=half_close)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"too many connections" in answer
        await until(lambda: len(api.server.guard.connections) == PLACES)
        assert api.server.guard.limit.refused == {"total": 0, "peer": 1}


@pytest.mark.parametrize("sent", [b"GET /healthz" + HOST + b"\r\n", POST + b"Content-Length: 9\r\n\r\n123456789"])
async def test_it_is_over_when_the_request_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(request_watch, "UNREAD_SILENT_S", 1000.0)
    async with full(tmp_path) as api:
        with dial(api) as peer:
            await until(lambda: len(api.server.guard.connections) == PLACES + 1)
            peer.sendall(sent)
            await until(lambda: len(api.server.guard.connections) == PLACES)


async def test_a_refused_peer_that_says_nothing_is_closed(tmp_path: Path) -> None:
    async with full(tmp_path, header_timeout_s=1) as api:
        with dial(api) as peer:
            assert await asyncio.to_thread(peer.recv, 4096) == b""


async def test_the_refusal_has_the_form_of_its_route(tmp_path: Path) -> None:
    async with full(tmp_path) as api:
        sent = (
            POST.replace(b"/v1/jobs", b"/v1/audio/transcriptions")
            + b"Content-Length: 2000000\r\n\r\n"
            + bytes(2_000_000)
        )
        answer = await asyncio.to_thread(ask, api, sent)
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == "too many connections"


async def test_a_peer_is_not_answered_before_it_has_asked(tmp_path: Path) -> None:
    async with full(tmp_path) as api:
        with dial(api) as peer:
            await until(lambda: api.server.guard.lingering.open == 1)
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):
                peer.recv(1)


async def test_what_a_refused_peer_sends_without_end_is_not_read_for_ever(tmp_path: Path) -> None:
    def pour(api: Running) -> int:
        sent = 0
        with dial(api) as peer:
            try:
                while sent < 100_000_000:
                    sent += peer.send(bytes(65536))
            except ConnectionError:
                pass
        return sent

    async with full(tmp_path) as api:
        assert await asyncio.to_thread(pour, api) < 30_000_000


async def test_only_so_many_refused_peers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have their answer, and are closed at once."""
    monkeypatch.setattr(request_watch, "UNREAD_SILENT_S", 1000.0)
    async with full(tmp_path) as api:
        guard = api.server.guard
        guard.lingering = ConnectionLimit(3, 2)
        with ExitStack() as held:
            peers = [held.enter_context(dial(api)) for _ in range(10)]
            await until(lambda: guard.limit.refused["peer"] == 10)
            await until(lambda: len(guard.connections) == PLACES + 2)
            assert guard.lingering.open == 2
            for peer in peers[:2]:
                peer.sendall(POST + b"Content-Length: 9\r\n\r\n")
            for peer in peers:
                assert (await asyncio.to_thread(peer.recv, 4096)).startswith(b"HTTP/1.1 503 ")
        await until(lambda: guard.lingering.open == 0)
        assert guard.limit.open == PLACES


async def test_refused_peers_do_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_watch, "UNREAD_SILENT_S", 1000.0)
    async with full(tmp_path) as api:
        with dial(api):
            await until(lambda: api.server.guard.lingering.open == 1)
            async with timeout(10):
                await api.server.stop()
            assert not api.server.guard.connections
