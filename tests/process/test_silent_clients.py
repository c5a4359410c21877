"""Clients that send nothing for a while: they stay while they live, and are told when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.frames import Opcode

from config.load import parse
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.network.nginx import nginx
from lab.patience import eventually, timeout
from lab.worker.peers import Worker, worker
from lab.worker.ws_calls import CODES, config, read, send, until_final
from mediaworker.ingress.interfaces import Upgrade
from mediaworker.ingress.listener import MediaListener
from mediaworker.ingress.outbox import SessionOutbox
from mediaworker.ingress.runner import Throttle

KEY = "silent-key-1234"
BEARER = {"Authorization": f"Bearer {KEY}"}
PROXY_S = 2
"""nginx cuts what is silent for so long."""
SHELLS = {"media": 0, "http": 1}
BEAT_S = 0.05

# -- behind nginx ------------------------------------------------------------------------------------------------------


class Proxied:
    def __init__(self, running: Worker, fronts: list[int]) -> None:
        self.running, self.fronts = running, fronts

    def url(self, path: str, port: str) -> str:
        return f"ws://127.0.0.1:{self.fronts[SHELLS[port]]}{path}"


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("proxied")
    options = {"STREAM__IDLE_S": "6", "EVENTS__HEARTBEAT_S": "1", "SIP__ENABLED": "false"} | LISTENER
    options["AUTH__API_KEYS"] = f'[{{name = "ann", key = "{KEY}", scopes = ["stream", "admin"]}}]'
    options |= {"TWILIO__AUTH_TOKEN": "", "MEDIA__START_TIMEOUT_S": "30"}
    with (
        worker(folder, LISTENER_PATH, **options) as running,
        nginx(folder, [running.media_port, running.http_port], timeout_s=PROXY_S) as fronts,
    ):
        yield Proxied(running, fronts)


@pytest.mark.parametrize("port", SHELLS)
async def test_an_idle_client_behind_nginx_is_told_before_it_is_closed(proxied: Proxied, port: str) -> None:
    async with connect(proxied.url("/ws/asr", port), additional_headers=BEARER, ping_interval=None) as websocket:
        await websocket.send(json.dumps(config()))
        found = await read(websocket)
    error, final = [each for each in found if each["type"] in ("error", "final")]
    assert error["code"] == "idle_timeout" and final["text"] == ""
    assert (websocket.close_code, websocket.close_reason) == (1000, "idle")


@pytest.mark.parametrize("port", SHELLS)
async def test_a_muted_client_goes_on_where_it_was(proxied: Proxied, port: str) -> None:
    """Longer than the proxy waits, and shorter than the worker does."""
    async with connect(proxied.url("/ws/asr", port), additional_headers=BEARER, ping_interval=None) as websocket:
        await websocket.send(json.dumps(config()))
        await send(websocket, CODES[:32000], speed=0, bytes_per_s=8000)
        await websocket.send(json.dumps({"type": "flush"}))
        first = await until_final(websocket)
        await outlasted(proxied.fronts[SHELLS[port]])
        await send(websocket, CODES[:32000], speed=0, bytes_per_s=8000)
        await websocket.send(json.dumps({"type": "finalize"}))
        last = [each for each in await read(websocket) if each["type"] == "final"]
    assert websocket.close_code == 1000
    assert last and last[0]["text"] and first["text"] and last[0]["start_ms"] > first["end_ms"]


async def outlasted(port: int, path: str = "/ws/transcribe") -> None:
    """A client that says nothing has been pinged through the proxy for twice as long as the proxy waits."""
    raw = await RawClient.open(port, path)
    pings = 0
    while pings < 2 * PROXY_S:
        opcode, payload = await raw.frame()
        if opcode == Opcode.PING:
            pings += 1
            raw.send(Opcode.PONG, payload)
    await raw.close()


@pytest.mark.parametrize("path", ["/ws/transcribe", "/asterisk/media", "/ws/asr"])
async def test_every_silent_socket_of_the_media_port_survives_nginx(proxied: Proxied, path: str) -> None:
    await outlasted(proxied.fronts[0], path)


# -- the media port ----------------------------------------------------------------------------------------------------


class Silence:
    """An endpoint and its session: takes everything and says nothing by itself."""

    subprotocols: tuple[str, ...] = ()
    text_as_bytes, call_id, deadline = True, None, None

    def __init__(self, *, streaming: bool = False) -> None:
        self.outbox, self.heard, self.lost, self.ahead, self.streaming = SessionOutbox(), 0, 0, False, streaming

    def admit(self, upgrade: Upgrade) -> Any:
        return lambda now: self

    def is_ahead(self) -> bool:
        return self.ahead

    def receive(self, message: str | bytes, now: float) -> None:
        self.heard += 1

    def resume(self, now: float) -> None: ...

    def expire(self, now: float) -> None: ...

    def connection_lost(self, now: float, *, broken: bool = False) -> None:
        self.lost += 1


@contextlib.asynccontextmanager
async def media_port(endpoint: Silence) -> AsyncIterator[MediaListener]:
    settings = parse({"media": {"host": "127.0.0.1", "port": 0}}).media
    listener = MediaListener(settings, {"/x": endpoint}, Throttle(), heartbeat_s=BEAT_S)  # type: ignore[dict-item]
    await listener.start()

    async def sweep() -> None:
        while True:
            list(listener.sweep())
            await asyncio.sleep(0.005)

    ticks = asyncio.create_task(sweep())
    try:
        yield listener
    finally:
        ticks.cancel()
        await listener.stop()


def upgrade(path: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Authorization: {BEARER['Authorization']}\r\n\r\n"
    ).encode()


class RawClient:
    """Reads frames by hand, and answers no ping by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int, path: str = "/x") -> RawClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(upgrade(path))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        return cls(reader, writer)

    async def frame(self) -> tuple[int, bytes]:
        async with timeout(20):
            first, second = await self._reader.readexactly(2)
            return first & 0x0F, await self._reader.readexactly(second & 0x7F)

    def send(self, opcode: int, payload: bytes) -> None:
        self._writer.write(bytes([0x80 | opcode, 0x80 | len(payload)]) + bytes(4) + payload)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_client_that_answers_pings_stays(streaming: bool) -> None:
    endpoint = Silence(streaming=streaming)
    async with media_port(endpoint) as listener:
        raw = await RawClient.open(listener.port)
        for _ in range(12):
            opcode, payload = await raw.frame()
            assert opcode == Opcode.PING
            raw.send(Opcode.PONG, payload)
        assert not endpoint.lost and listener.connections == 1
        await raw.close()


@pytest.mark.parametrize("opcode", [Opcode.TEXT, Opcode.BINARY, Opcode.PING])
async def test_a_client_that_sends_anything_but_pongs_stays(opcode: int) -> None:
    endpoint = Silence()
    async with media_port(endpoint) as listener:
        raw = await RawClient.open(listener.port)
        pings = 0
        while pings < 12:
            pings += (await raw.frame())[0] == Opcode.PING
            raw.send(opcode, b"{}")
        assert not endpoint.lost
        await raw.close()


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_client_that_answers_nothing_is_closed(streaming: bool) -> None:
    endpoint = Silence(streaming=streaming)
    async with media_port(endpoint) as listener:
        raw = await RawClient.open(listener.port)
        frames = [await raw.frame()]
        while frames[-1][0] == Opcode.PING:
            frames.append(await raw.frame())
        assert frames[-1][0] == Opcode.CLOSE
        assert struct.unpack("!H", frames[-1][1][:2]) == (1011,)
        await raw.close()
        await eventually(lambda: endpoint.lost)
        assert listener.connections == 0


async def test_a_client_that_reads_nothing_is_closed() -> None:
    """What is written to it waits in the kernel, and no ping can reach it: nothing of it moves."""
    endpoint = Silence()
    async with media_port(endpoint) as listener:
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", listener.port))
        await asyncio.get_running_loop().sock_sendall(peer, upgrade("/x"))
        await eventually(lambda: listener.connections)
        for _ in range(200):
            endpoint.outbox.send("x" * 50_000)
        await eventually(lambda: endpoint.lost)
        peer.close()


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_client_that_is_held_back_is_not_judged(streaming: bool) -> None:
    """Its pongs come behind the audio that is not read yet."""
    endpoint = Silence(streaming=streaming)
    async with media_port(endpoint) as listener:
        raw = await RawClient.open(listener.port)
        raw.send(Opcode.TEXT, b"{}")
        await eventually(lambda: endpoint.heard)
        endpoint.ahead = True
        raw.send(Opcode.TEXT, b"{}")
        pings = 0
        while pings < 12:
            pings += (await raw.frame())[0] == Opcode.PING
            if not streaming:  # it is read on, and what is read waits
                raw.send(Opcode.PONG, b"")
        assert not endpoint.lost
        endpoint.ahead = False
        listener.throttle.release()
        await eventually(lambda: endpoint.heard == 2)
        await raw.close()


async def test_a_connection_that_is_closing_is_pinged_no_more() -> None:
    endpoint = Silence()
    async with media_port(endpoint) as listener:
        raw = await RawClient.open(listener.port)
        assert (await raw.frame())[0] == Opcode.PING
        endpoint.outbox.close(1000, "over")
        frames = [await raw.frame()]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frames.append(await raw.frame())
        assert frames[-1][0] == Opcode.CLOSE
        await raw.close()
