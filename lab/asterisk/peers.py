"""Asterisk's side of AudioSocket and of its WebSocket channels, in real time, as Asterisk does it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import struct
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from lab.patience import timeout

PTIME_S = 0.020
KINDS = {8000: 0x10, 12000: 0x11, 16000: 0x12, 24000: 0x13, 32000: 0x14, 44100: 0x15, 48000: 0x16}


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack("!BH", kind, len(payload)) + payload


def pieces(data: bytes, rate_hz: int, sample_bytes: int = 2) -> list[bytes]:
    """20 ms each."""
    size = rate_hz // 50 * sample_bytes
    return [data[at : at + size] for at in range(0, len(data), size)]


async def in_step(count: int, speed: float):
    """Yields 0, 1, 2… when each is due; `speed` 0: at once."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    for number in range(count):
        if speed:
            await asyncio.sleep(max(0.0, start_s + number * PTIME_S / speed - loop.time()))
        yield number


@dataclass
class AudioSocketPeer:
    """A connection to the worker. `heard` has all frames that came from it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    id: str
    heard: list[tuple[int, bytes]] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, port: int, *, greet: bool = True):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number = uuid.uuid4()
        peer = cls(reader, writer, str(number))
        if greet:
            writer.write(frame(0x01, number.bytes))
        listening = asyncio.create_task(peer.listen())
        try:
            yield peer
        finally:
            listening.cancel()
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await listening
                await writer.wait_closed()

    async def listen(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                kind, size = struct.unpack("!BH", await self.reader.readexactly(3))
                self.heard.append((kind, await self.reader.readexactly(size)))
        self.over.set()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def say(self, pcm: bytes, rate_hz: int, *, speed: float = 1.0) -> None:
        """Samples in frames of 20 ms."""
        parts = pieces(pcm, rate_hz)
        async for number in in_step(len(parts), speed):
            self.writer.write(frame(KINDS[rate_hz], parts[number]))
            await self.writer.drain()

    async def ended(self, timeout_s: float = 60) -> None:
        """Until the worker has closed."""
        async with timeout(timeout_s):
            await self.over.wait()


FORMATS = {"ulaw": (8000, 1), "alaw": (8000, 1), "slin": (8000, 2), "slin16": (16000, 2), "slin24": (24000, 2)}
"""Format → rate, bytes of a sample."""


class ChannelPeer:
    """A channel of chan_websocket, which connects to the worker: control as plain text, or as JSON."""

    def __init__(self, socket: ClientConnection, codec: str, *, json: bool, channel_id: str) -> None:
        self.socket, self.codec, self.json, self.channel_id = socket, codec, json, channel_id
        self.told: list[str | bytes] = []
        """All that the worker has sent."""
        self.over = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, port: int, codec: str = "ulaw", *, json: bool = True, password: str = "", host: str = ""):
        headers = {}
        if password:
            headers["Authorization"] = "Basic " + base64.b64encode(f"asterisk:{password}".encode()).decode()
        url = f"ws://{host or '127.0.0.1'}:{port}/asterisk/media"
        async with connect(url, subprotocols=["media"], additional_headers=headers, compression=None) as socket:
            assert socket.subprotocol == "media"
            peer = cls(socket, codec, json=json, channel_id=f"{time.time():.0f}.{uuid.uuid4().int % 10**6}")
            listening = asyncio.create_task(peer.listen())
            try:
                yield peer
            finally:
                listening.cancel()

    async def listen(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.told.append(await self.socket.recv())
                if "GET_STATUS" in str(self.told[-1]):
                    await self.event("STATUS", queue_length=0, queue_full=False)
        self.over.set()

    async def event(self, name: str, **fields: Any) -> None:
        if self.json:
            await self.socket.send(json.dumps({"event": name, **fields}))
        else:
            words = [f"{key}:{value}" for key, value in fields.items() if key != "channel_variables"]
            await self.socket.send(" ".join([name, *words]))

    async def start(self, **variables: str) -> None:
        rate_hz, width = FORMATS[self.codec]
        await self.event(
            "MEDIA_START",
            connection_id="mediaworker",
            channel=f"WebSocket/mediaworker/0x{id(self):x}",
            channel_id=self.channel_id,
            format=self.codec,
            optimal_frame_size=rate_hz // 50 * width,
            ptime=20,
            channel_variables={"MEDIA_WEBSOCKET_CONNECTION_ID": "mediaworker", **variables},
        )

    async def say(self, data: bytes, *, speed: float = 1.0) -> None:
        rate_hz, width = FORMATS[self.codec]
        parts = pieces(data, rate_hz, width)
        async for number in in_step(len(parts), speed):
            await self.socket.send(parts[number])

    async def ended(self, timeout_s: float = 60) -> None:
        """Until the worker has closed."""
        async with timeout(timeout_s):
            await self.over.wait()
