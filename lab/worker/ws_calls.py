"""A client of the WebSocket routes for audio: it speaks at any speed and reads what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import numpy as np
import soxr
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from audio.codecs.g711 import alaw_encode, ulaw_decode
from lab.events.story import check_story
from lab.patience import timeout
from lab.worker import qwen
from lab.worker.peers import Worker

QWEN = qwen.QWEN | {"SIP__ENABLED": "false", "EVENTS__HEARTBEAT_S": "2"}
SAID = qwen.SAID["customer"]
CODES = qwen.file("customer").read_bytes()
PCM = ulaw_decode(CODES)
TIMEOUT_S = 60


def url(running: Worker, route: str, port: str = "media") -> str:
    number = running.media_port if port == "media" else running.http_port
    return f"ws://127.0.0.1:{number}/ws/{route}"


def config(encoding: str = "mulaw", rate: int = 8000, **fields: Any) -> dict[str, Any]:
    return {"type": "config", "encoding": encoding, "sample_rate": rate, **fields}


def speech(encoding: str = "mulaw", rate: int = 8000) -> bytes:
    """What is said, as a client would send it."""
    if encoding == "mulaw":
        return CODES
    if encoding == "alaw":
        return alaw_encode(PCM)
    samples = soxr.resample(PCM.astype(np.float32) / 32768, 8000, rate, quality="HQ")
    if encoding == "pcm_f32le":
        return samples.astype("<f4").tobytes()
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes()


async def send(socket: ClientConnection, data: bytes, *, speed: float, bytes_per_s: int) -> None:
    """In pieces of 100 ms; `speed` 0: at once."""
    size = bytes_per_s // 10
    for start in range(0, len(data), size):
        await socket.send(data[start : start + size])
        if speed:
            await asyncio.sleep(0.1 / speed)


async def read(socket: ClientConnection) -> list[dict[str, Any]]:
    """All until the close."""
    found = []
    async with timeout(TIMEOUT_S):
        with contextlib.suppress(ConnectionClosed):
            while True:
                found.append(json.loads(await socket.recv()))
    return found


async def until_final(socket: ClientConnection) -> dict[str, Any]:
    async with timeout(TIMEOUT_S):
        while True:
            message: dict[str, Any] = json.loads(await socket.recv())
            if message.get("type") == "final" or message.get("is_final"):
                return message


async def told(
    where: str, first: dict[str, Any] | None, data: bytes, *, speed: float, bytes_per_s: int = 8000, end: Any = None
) -> list[dict[str, Any]]:
    """Say it all, finalize, and hear the rest."""
    async with connect(where, compression=None, max_size=None) as socket:
        if first is not None:
            await socket.send(json.dumps(first))
        reading = asyncio.create_task(read(socket))
        await send(socket, data, speed=speed, bytes_per_s=bytes_per_s)
        await socket.send(json.dumps(end or {"type": "finalize"}))
        messages = await reading
        assert socket.close_code == 1000
    return messages


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["text"] for message in messages if message.get("type") == "final" or message.get("is_final")]


def stored(running: Worker, greeting: dict[str, Any]) -> list[dict[str, Any]]:
    """The finals of a session that has been closed, from the store: they are there at once. Its story keeps every
    promise."""
    return check_story(running.events(call_of(running, greeting)["call_id"]))


def call_of(running: Worker, greeting: dict[str, Any]) -> dict[str, Any]:
    (call,) = [each for each in running.calls() if each["external_id"] == greeting["session_id"]]
    assert call["ended_at"]
    return call
