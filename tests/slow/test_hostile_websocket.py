"""Hostile neighbours on the WebSockets: subscribers that do not read, frames that are none, streams without signature.

Each attacks a worker that carries a call meanwhile, and the call is unharmed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from websockets.asyncio.client import connect

from lab.chaos.neighbours import (
    INTRUDER,
    Scene,
    answer,
    ask,
    attack_socket,
    close_code,
    frame,
    heard,
    open_websocket,
    play,
    status,
    trouble,
    upgrade,
)
from lab.network.ports import ports
from lab.patience import until
from lab.worker.peers import worker
from mediaworker.ingress.twilio.webhook import CallTokens, sign

LIMITS = {
    "EVENTS__HEARTBEAT_S": "2",
    "EVENTS__QUEUE": "64",
    "EVENTS__MAX_SUBSCRIBERS": "40",
    "MEDIA__START_TIMEOUT_S": "2",
    "HTTP__TRANSFER_TIMEOUT_S": "2",
    "SIP__ENABLED": "false",
}
TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
EVENTS, STREAM, ASR = "/v1/events?call=*", "/twilio/stream", "/ws/asr"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with worker(tmp_path_factory.mktemp("worker"), **LIMITS) as running:
        yield Scene(running, heard(running, play(running)))


def start(number: int) -> str:
    body = {"callSid": f"CA{number}", "tracks": ["inbound"], "customParameters": {"mw_from": INTRUDER}}
    return json.dumps({"event": "start", "streamSid": f"MZ{number}", "start": body})


async def chatter(scene: Scene, events: int) -> None:
    """A stream that makes many events: each digit is one."""
    async with connect(scene.worker.twilio, compression=None) as stream:
        await stream.send(start(0))
        for _ in range(events):
            await stream.send(json.dumps({"event": "dtmf", "streamSid": "MZ0", "dtmf": {"digit": "5"}}))
            await asyncio.sleep(0.05)


async def test_subscribers_that_do_not_read(scene: Scene) -> None:
    """Never, or a byte a second: cut after two heartbeats at the latest; those that read miss nothing meanwhile."""

    async def read(cursors: list[str]) -> None:
        async with connect(f"{scene.worker.url.replace('http', 'ws')}{EVENTS}", compression=None) as good:
            with contextlib.suppress(asyncio.CancelledError):
                async for text in good:
                    event = json.loads(text)
                    if event["type"] == "dtmf":
                        cursors.append(event["cursor"])

    def creep(held: list[socket.socket]) -> bool:
        """A byte is read from each; whether the worker has given them up."""
        for sock in held:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                sock.recv(1)
        time.sleep(0.5)
        return scene.worker.metric("mediaworker_event_subscribers") <= 1

    async with trouble(scene):
        mute = [open_websocket(scene.http, EVENTS, receive_buffer=1) for _ in range(15)]
        creeping = [open_websocket(scene.http, EVENTS, receive_buffer=1) for _ in range(15)]
        cursors: list[str] = []
        reader = asyncio.create_task(read(cursors))
        talk = asyncio.create_task(chatter(scene, 100))
        await asyncio.to_thread(until, lambda: creep(creeping), 30, "they are cut")
        await talk
        await asyncio.to_thread(until, lambda: len(cursors) == 100, 20)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await asyncio.to_thread(until, lambda: scene.worker.metric("mediaworker_event_subscribers") == 0, 20)
        assert len(set(cursors)) == 100
        for sock in mute + creeping:
            sock.close()


BROKEN = {
    "reserved bits, as compression sets them": (frame(TEXT, b"x", rsv=4), 1002),
    "an unmasked frame": (frame(TEXT, b"x", masked=False), 1002),
    "an unknown opcode": (frame(3), 1002),
    "a fragmented ping": (frame(PING, b"x", fin=False), 1002),
    "a ping too long": (frame(PING, b"x" * 126), 1002),
    "a continuation of nothing": (frame(0, b"x"), 1002),
    "a message within a message": (frame(TEXT, b"x", fin=False) + frame(TEXT, b"y"), 1002),
    "not UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "not UTF-8 in pieces": (frame(TEXT, b"\xc3", fin=False) + frame(0, b"\x28"), 1007),
    "a frame too big": (frame(TEXT, b"x" * 70_000), 1009),
    "a length of 2^63": (struct.pack("!BBQ", 0x81, 0xFF, 1 << 63) + b"\0\0\0\0", 1009),
    "a length of 2^62": (struct.pack("!BBQ", 0x81, 0xFF, 1 << 62) + b"\0\0\0\0", 1009),
    "a message too big": ((frame(TEXT, b"x" * 60_000, fin=False)) + frame(0, b"x" * 60_000), 1009),
    "a close of one byte": (frame(CLOSE, b"\x03"), 1002),
    "a close with a code that nobody may send": (frame(CLOSE, struct.pack("!H", 1005)), 1002),
    "garbage": (bytes(range(200)) * 10, 1002),
}
BOMB = frame(TEXT, b"", fin=False) + frame(0, b"", fin=False) * 200_000


async def test_frames_that_are_none(scene: Scene) -> None:
    def attack(address: tuple[str, int], path: str, data: bytes) -> int | None:
        with contextlib.closing(open_websocket(address, path)) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
            return close_code(answer(sock))

    async with trouble(scene):
        doors = [(scene.http, EVENTS), (scene.http, STREAM), (scene.media, STREAM)]
        doors += [(scene.http, ASR), (scene.media, ASR)]
        for address, path in doors:
            found = {n: await asyncio.to_thread(attack, address, path, data) for n, (data, _) in BROKEN.items()}
            media = (address, path) == (scene.media, STREAM)
            wanted = {n: code for n, (_, code) in BROKEN.items()}
            if media:  # Twilio's text is taken undecoded: what is not UTF-8 is not JSON either, and counted as that
                wanted |= {n: 1008 for n, code in wanted.items() if code == 1007}
            assert found == wanted, (path, media)
            code = await asyncio.to_thread(attack, address, path, BOMB)
            assert code in (1008, 1009, None), code
        assert scene.worker.metric("mediaworker_http_bad_requests_total") >= 2 * len(BROKEN) - 4


async def test_compression_is_not_granted(scene: Scene) -> None:
    """So there is nothing a small frame could swell to."""
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, x-webkit-deflate-frame"
    for address, path in ((scene.http, EVENTS), (scene.http, STREAM), (scene.media, STREAM)):
        with contextlib.closing(attack_socket(address)) as sock:
            sock.sendall(upgrade(path, address[1], offer))
            head = b""
            while b"\r\n\r\n" not in head:
                head += await asyncio.to_thread(sock.recv, 4096)
            assert status(head) == 101
            assert b"extensions" not in head.lower().split(b"\r\n\r\n")[0]


async def test_pings_whose_pongs_nobody_reads(scene: Scene) -> None:
    def attack(address: tuple[str, int], path: str) -> int:
        pings, sent = frame(PING, b"x" * 125) * 500, 0
        with contextlib.closing(open_websocket(address, path, receive_buffer=1)) as sock:
            sock.settimeout(1.5)
            with contextlib.suppress(OSError):
                while sent < 100_000_000:
                    sent += sock.send(pings)
        return sent

    async with trouble(scene):
        for address, path in ((scene.http, EVENTS), (scene.media, STREAM)):
            assert await asyncio.to_thread(attack, address, path) < 30_000_000


async def test_upgrades_that_are_none(scene: Scene) -> None:
    async with trouble(scene):
        for address in (scene.http, scene.media):
            port = address[1]
            good = upgrade(STREAM, port)
            wrong = {
                good.replace(b"Version: 13", b"Version: 7"): 400,
                good.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"short"): 400,
                good.replace(b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b""): 400,
                upgrade(STREAM, port, "Origin: https://evil.example"): 403,
                upgrade(STREAM, port, "X-Forwarded-For: 127.0.0.1"): 403,
                good.replace(f"Host: 127.0.0.1:{port}".encode(), b"Host: evil.example"): 403,
                upgrade("/nowhere", port): 404,
                upgrade("/../v1/events", port): 404,
            }
            found = {data: status(await asyncio.to_thread(ask, address, data)) for data in wrong}
            assert found == wrong
        for query in ("call=x&call=y", "types=what", "call=" + "x" * 5000, "call=..%2f..", "call=%00"):
            reply = await asyncio.to_thread(ask, scene.http, upgrade(f"/v1/events?{query}", scene.http[1]))
            assert status(reply) in (400, 404), query
        for after in ("nonsense", "%00", "9" * 900, "x:-1", "%F0%9F%93%9E:1", "a:" + "9" * 18):
            with contextlib.closing(open_websocket(scene.http, f"/v1/events?after={after}")) as sock:
                sock.sendall(frame(CLOSE, struct.pack("!H", 1000)))
                assert close_code(await asyncio.to_thread(answer, sock)) == 4009, after


async def test_subscribers_that_are_too_many_or_talk(scene: Scene) -> None:
    """503 beyond the places. What a subscriber says is not listened to; one that does nothing else is closed."""
    data = frame(TEXT, b'{"hello":"worker"}') * 5000

    def talk() -> int | None:
        with contextlib.closing(open_websocket(scene.http, EVENTS)) as sock:
            for _ in range(20):
                sock.sendall(data)
                time.sleep(0.05)
            sock.sendall(frame(CLOSE, struct.pack("!H", 1000)))
            return close_code(answer(sock))

    async with trouble(scene):
        held = [await asyncio.to_thread(open_websocket, scene.http, EVENTS) for _ in range(40)]
        reply = await asyncio.to_thread(ask, scene.http, upgrade(EVENTS, scene.http[1]))
        assert status(reply) == 503 and b"retry-after" in reply.lower()
        for sock in held:
            sock.close()
        await asyncio.to_thread(until, lambda: scene.worker.metric("mediaworker_event_subscribers") == 0, 20)
        assert await asyncio.to_thread(talk) == 1008


async def test_streams_that_are_not_twilios(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No, a wrong or somebody else's signature: 403. A signature that is sent again opens no second call."""
    (port,) = ports(1)
    url = f"ws://127.0.0.1:{port}/twilio/stream"
    limits = LIMITS | {"TWILIO__AUTH_TOKEN": '"12345"', "TWILIO__PUBLIC_URL": "https://twilio.test"}
    limits |= {"TWILIO__STREAM_URL": url, "MEDIA__PORT": str(port)}
    with worker(tmp_path_factory.mktemp("signed"), **limits) as running:
        right = sign("12345", url)

        def attempt(signature: str | None) -> int:
            fields = [f"X-Twilio-Signature: {signature}"] if signature is not None else []
            sock = attack_socket(("127.0.0.1", port))
            with contextlib.closing(sock):
                sock.sendall(upgrade(STREAM, port, *fields))
                return status(sock.recv(4096))

        def attack() -> None:
            others = (sign("12346", url), sign("12345", url + "/x"), right[:-2], right + "=")
            for wrong in (None, "", "AAAA", "\u00e9", *others):
                assert attempt(wrong) == 403
            for _ in range(1000):
                assert attempt(base64.b64encode(os.urandom(20)).decode()) == 403
            assert attempt(right) == 101

        await asyncio.to_thread(attack)
        assert running.metric("mediaworker_twilio_forbidden_total") == 1008
        log = running.log.read_text()
        assert log.count("twilio request forbidden") == 1 and right not in log

        async def stream(token: str, call_sid: str, stream_sid: str) -> int | None:
            body = {"callSid": call_sid, "tracks": ["inbound"], "customParameters": {"mw_token": token}}
            async with connect(url, additional_headers={"X-Twilio-Signature": right}, compression=None) as socket:
                await socket.send(json.dumps({"event": "start", "streamSid": stream_sid, "start": body}))
                try:
                    await asyncio.wait_for(socket.wait_closed(), 1)
                except TimeoutError:
                    return None
                return socket.close_code

        tokens = CallTokens(("12345",), ttl_s=60)
        token = tokens.issue("CA1", time.time())
        assert await stream(token, "CA1", "MZ1") is None  # a call
        assert await stream(token, "CA1", "MZ2") == 1008  # replayed
        assert await stream(token, "CA2", "MZ3") == 1008  # another's
        assert await stream(tokens.issue("CA1", time.time() - 100), "CA1", "MZ4") == 1008  # too late
        assert await stream("x" * 5000, "CA1", "MZ5") == 1008
        assert running.metric("mediaworker_calls_opened_total") == 1
