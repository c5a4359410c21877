"""A worker at work while somebody makes trouble: what the trouble must not change, measured before and after."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from audio.codecs.g711 import ulaw_encode
from lab.media.speech import SPEECH
from lab.patience import until
from lab.worker.peers import Worker, command
from mediaworker.cli.play import load_pcm

INTRUDER = "100"
"""Who the attacks say is calling."""
DIALLED = "demo"
"""Whom the call that goes on is for; no attack asks for it."""
SPOKEN = SPEECH / "tt-weasels.wav"


def heard(worker: Worker, call: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What a call came to, without what differs from call to call: its id and the clock."""
    events = worker.events(call["call_id"])
    assert events[-1]["type"] == "call.ended"
    assert [leg["lost"] for leg in events[-1]["legs"]] == [0] * len(events[-1]["legs"])
    finals = [event for event in events if event["type"] == "transcript.final"]
    started = [event for event in events if event["type"] == "speech.started"]
    assert len(started) == len(finals)
    assert all(final["lost_ms"] == 0 for final in finals)
    return [(final["leg"], final["end_ms"] - final["start_ms"], final["text"], final["reason"]) for final in finals]


@dataclass
class Scene:
    """A running worker and what an undisturbed call comes to on it."""

    worker: Worker
    undisturbed: list[tuple[Any, ...]]
    rss: float = 0
    fds: float = 0
    log_from: int = 0
    sip: bool = False
    """The call that goes on comes by SIP."""

    @property
    def http(self) -> tuple[str, int]:
        return "127.0.0.1", self.worker.http_port

    @property
    def media(self) -> tuple[str, int]:
        return "127.0.0.1", self.worker.media_port

    def log(self) -> str:
        """What has been logged since the trouble began."""
        return self.worker.log.read_text(errors="replace")[self.log_from :]


def play(worker: Worker, *, sip: bool = False) -> dict[str, Any]:
    """A call with speech, by SIP or as a Twilio stream, to its end."""
    before = {call["call_id"] for call in worker.every_call()}
    where = ("call", f"sip:{DIALLED}@127.0.0.1:{worker.sip_port}") if sip else ("stream", worker.twilio)
    done = command(*where, "--play", str(SPOKEN))
    assert done.returncode == 0, done.stderr

    def over() -> dict[str, Any] | None:
        made = (call for call in worker.every_call() if call["call_id"] not in before)
        ours = (call for call in made if (call["to"] == DIALLED if sip else call["from"] != INTRUDER))
        return next((call for call in ours if call["ended_at"]), None)

    return until(over, 60)


@contextlib.asynccontextmanager
async def trouble(scene: Scene, *, memory_mb: float = 24, lines: int = 30, fds: int = 3) -> AsyncIterator[Scene]:
    """Within: a call with speech goes on. At the end it has come to the same as an undisturbed one, nothing of
    the trouble is left, and the log has neither tracebacks nor a flood."""
    worker = scene.worker
    scene.rss, scene.fds = worker.metric("mediaworker_resident_memory_bytes"), worker.metric("mediaworker_open_fds")
    scene.log_from = len(worker.log.read_text(errors="replace"))
    victim = asyncio.create_task(asyncio.to_thread(play, worker, sip=scene.sip))
    await asyncio.to_thread(until, lambda: worker.metric("mediaworker_calls_active") >= 1, 30, "the call is up")
    try:
        yield scene
    finally:
        call = await victim
    assert heard(worker, call) == scene.undisturbed
    assert worker.get("/readyz")["status"] == "ready"
    await asyncio.to_thread(
        until, lambda: worker.metric("mediaworker_open_fds") <= scene.fds + fds, 40, "descriptors come back"
    )
    grown = (worker.metric("mediaworker_resident_memory_bytes") - scene.rss) / 1e6
    assert grown < memory_mb, f"{grown:.1f} MB more than before"
    log = scene.log()
    assert "Traceback" not in log, log[-4000:]
    loud = [line for line in log.splitlines() if "[info" not in line]
    assert len(loud) < lines, "\n".join(loud)[-4000:]


def attack_socket(address: tuple[str, int], *, receive_buffer: int = 0, source: str = "") -> socket.socket:
    made = socket.socket()
    if receive_buffer:  # before connect: it decides the window that is offered
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    if source:
        made.bind((source, 0))
    made.settimeout(30)
    made.connect(address)
    return made


def answer(sock: socket.socket) -> bytes:
    """Everything until the other side closes (a reset counts as that)."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65536):
            found += data
    return found


def ask(address: tuple[str, int], request: bytes) -> bytes:
    """Send, and read until the other side closes."""
    with contextlib.closing(attack_socket(address)) as sock:
        with contextlib.suppress(ConnectionError):  # refused before all of it was sent
            sock.sendall(request)
        return answer(sock)


def status(reply: bytes) -> int:
    assert reply.startswith(b"HTTP/1.1 "), reply[:200]
    return int(reply.split(b" ", 2)[1])


def upgrade(path: str, port: int, *fields: str) -> bytes:
    head = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade"]
    head += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13", *fields]
    return ("\r\n".join(head) + "\r\n\r\n").encode()


def frame(opcode: int, data: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
    """A WebSocket frame, right or wrong (RFC 6455 section 5.2); the mask is zero."""
    first, mask = (0x80 if fin else 0) | rsv << 4 | opcode, 0x80 if masked else 0
    size = len(data)
    if size < 126:
        head = struct.pack("!BB", first, mask | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, mask | 126, size)
    else:
        head = struct.pack("!BBQ", first, mask | 127, size)
    return head + (b"\0\0\0\0" if masked else b"") + data


def open_websocket(address: tuple[str, int], path: str, *fields: str, receive_buffer: int = 0) -> socket.socket:
    sock = attack_socket(address, receive_buffer=receive_buffer)
    sock.sendall(upgrade(path, address[1], *fields))
    head = b""
    while b"\r\n\r\n" not in head:
        data = sock.recv(1)
        assert data, head
        head += data
    assert status(head) == 101, head
    return sock


def close_code(data: bytes) -> int | None:
    """The code of the close frame at the end of what a server has sent."""
    position, code = 0, None
    while position + 2 <= len(data):
        opcode, size = data[position] & 15, data[position + 1] & 127
        position += 2
        if size == 126:
            size = struct.unpack_from("!H", data, position)[0]
            position += 2
        elif size == 127:
            size = struct.unpack_from("!Q", data, position)[0]
            position += 8
        if opcode == 8:
            code = struct.unpack_from("!H", data, position)[0] if size >= 2 else 1005
        position += size
    return code


def stranger() -> str:
    """An address of this machine that is not loopback: who sends from there is nobody's friend."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.254", 9))  # nothing is sent
        address = str(probe.getsockname()[0])
    assert not address.startswith("127."), "this machine has no address but loopback"
    return address


def media_messages(track: str = "inbound") -> Iterator[bytes]:
    """20 ms of speech each, in Twilio's words."""
    import base64

    codes = ulaw_encode(load_pcm(SPOKEN, 8000).astype(np.int16))
    for number in range(len(codes) // 160):
        payload = base64.b64encode(codes[number * 160 : number * 160 + 160]).decode()
        yield (
            f'{{"event":"media","sequenceNumber":"{number}","streamSid":"MZ1","media":{{"track":"{track}",'
            f'"chunk":"{number}","timestamp":"{number * 20}","payload":"{payload}"}}}}'
        ).encode()
