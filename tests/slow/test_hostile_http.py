"""Hostile neighbours on the HTTP port: each attacks a worker that carries a call meanwhile, which is unharmed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from lab.chaos.neighbours import Scene, answer, ask, attack_socket, heard, play, status, trouble
from lab.patience import until
from lab.worker.peers import worker

HOST = b"Host: 127.0.0.1\r\n"
VOICE = b"POST /twilio/voice HTTP/1.1\r\n" + HOST
LIMITS = {
    "HTTP__HEADER_TIMEOUT_S": "2",
    "HTTP__TRANSFER_TIMEOUT_S": "2",
    "HTTP__MAX_CONNECTIONS": "500",
    "MEDIA__START_TIMEOUT_S": "2",
    "MEDIA__MAX_CONNECTIONS": "500",
    "SIP__ENABLED": "false",
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with worker(tmp_path_factory.mktemp("worker"), **LIMITS) as running:
        yield Scene(running, heard(running, play(running)))


async def test_slowloris(scene: Scene) -> None:
    """Heads that never end, bodies that trickle: 408. A body that nobody wants is not read for ever."""

    def pour() -> int:
        sent = 0
        with contextlib.closing(attack_socket(scene.http)) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(b"POST /healthz HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
            while sent < 200_000_000:
                sock.sendall(b"10000\r\n" + b"A" * 65536 + b"\r\n")
                sent += 65536
        return sent

    def attack() -> list[bytes]:
        heads = [attack_socket(scene.http) for _ in range(100)]
        bodies = [attack_socket(scene.http) for _ in range(20)]
        silent = [attack_socket(scene.http) for _ in range(20)]
        for sock in heads:
            sock.sendall(b"GET / HTTP/1.1\r\n" + HOST)
        for sock in bodies:
            sock.sendall(VOICE + b"Content-Length: 1000\r\n\r\nA")
        for _ in range(6):  # a byte now and then keeps no connection
            for sock in heads + bodies:
                with contextlib.suppress(OSError):
                    sock.sendall(b"X")
            time.sleep(0.5)
        replies = [answer(sock) for sock in heads + bodies]
        assert [answer(sock) for sock in silent] == [b""] * 20
        for sock in heads + bodies + silent:
            sock.close()
        return replies

    async with trouble(scene):
        before = scene.worker.metric("mediaworker_http_slow_requests_total")
        replies = await asyncio.to_thread(attack)
        assert {status(reply) for reply in replies if reply} == {408}
        assert sum(bool(reply) for reply in replies) > 60  # a reset may overtake the answer
        assert scene.worker.metric("mediaworker_http_slow_requests_total") - before == 120
        assert await asyncio.to_thread(pour) < 20_000_000  # what the kernel's buffers take


BIG = b"A" * 70000
REFUSED = {
    "a head too long": (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + BIG + b"\r\n\r\n", 431),
    "a line too long": (b"GET /" + BIG + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431),
    "many headers": (b"GET / HTTP/1.1\r\n" + HOST + b"X: 1\r\n" * 5000 + b"\r\n", 431),
    "two lengths": (VOICE + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nAA", 400),
    "length and chunked": (
        VOICE + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunked in 1.0": (b"POST /twilio/voice HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "another coding": (VOICE + b"Transfer-Encoding: gzip\r\n\r\n", 501),
    "hidden coding": (VOICE + b"Transfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n", 501),
    "space before the colon": (b"GET / HTTP/1.1\r\n" + HOST + b"X : 1\r\n\r\n", 400),
    "a null": (b"GET / HTTP/1.1\r\n" + HOST + b"X: \0\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "a bad chunk": (
        VOICE + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        400,
    ),
    "garbage": (bytes(range(256)) * 4, 400),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300 + b"\r\n\r\n", 400),
    "http2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a body too large": (VOICE + b"Content-Length: 999999\r\n\r\n" + BIG * 3, 413),
    "chunks too large": (
        VOICE + b"Transfer-Encoding: chunked\r\n\r\n" + b"11170\r\n%s\r\n" % BIG * 3,
        413,
    ),
    "a patch too large": (b"PATCH /v1/calls/x HTTP/1.1\r\n" + HOST + b"Content-Length: 999999\r\n\r\n" + BIG * 3, 413),
    "a websocket as plain http": (b"GET /v1/events HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", 426),
    "twilio as plain http": (b"GET /twilio/stream HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", 426),
    "another method": (b"BREW / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", 405),
    "a tunnel": (b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", 404),
    "a proxy": (b"GET http://169.254.169.254/ HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", 404),
} | {
    f"traversal {path.decode()}": (b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", 404)
    for path in (
        b"/../../etc/passwd",
        b"/..%2f..%2fetc/passwd",
        b"/%2e%2e/%2e%2e/etc/passwd",
        b"/app.js/../../worker.py",
        b"/app.js%00.css",
        b"//etc/passwd",
        b"/v1/calls/..%2f..%2fhealthz",
        b"/v1/calls/%2e%2e/transcript",
        b"/static/../config/settings.py",
    )
}


async def test_what_is_not_http_is_refused_with_its_own_status(scene: Scene) -> None:
    async with trouble(scene):
        found = {name: await asyncio.to_thread(ask, scene.http, request) for name, (request, _) in REFUSED.items()}
        assert {name: status(reply) for name, reply in found.items()} == {n: code for n, (_, code) in REFUSED.items()}
        for name, reply in found.items():
            assert b"application/problem+json" in reply, name
            assert b"root:" not in reply
        # A smuggled second request is never answered.
        smuggled = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
        head = VOICE + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        reply = await asyncio.to_thread(ask, scene.http, head + b"0\r\n\r\n" + smuggled)
        assert reply.count(b"HTTP/1.1 4") == 1 and b"200 OK" not in reply
        for sort in ("Content-Length: 100000", "Transfer-Encoding: chunked"):  # gone in the middle of a body
            with contextlib.closing(attack_socket(scene.http)) as sock:
                sock.sendall(b"PATCH /v1/calls/x HTTP/1.1\r\n" + HOST + sort.encode() + b"\r\n\r\n3\r\nabc")
        # Answered before the body, which turns out bad.
        for route in (b"/healthz", b"/v1/calls/x/hangup", b"/nothing"):
            head = b"POST " + route + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
            with contextlib.closing(attack_socket(scene.http)) as sock:
                sock.sendall(head)
                assert (await asyncio.to_thread(sock.recv, 12)).startswith(b"HTTP/1.1 4")
                sock.sendall(b"ZZ\r\n")
                await asyncio.to_thread(answer, sock)


async def test_more_connections_than_there_are_places(scene: Scene) -> None:
    """10,000 of them, to both ports; who was there before stays, and afterwards everything is as before."""

    def attack(address: tuple[str, int]) -> tuple[int, int]:
        held: list[socket.socket] = []
        try:
            for _ in range(5000):
                sock = attack_socket(address)
                sock.setblocking(False)
                held.append(sock)
            time.sleep(0.5)
            refused = 0
            for sock in held:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    refused += sock.recv(32).startswith(b"HTTP/1.1 503")
            return len(held), refused
        finally:
            for sock in held:
                sock.close()

    async with trouble(scene):
        for name, address in (("http", scene.http), ("media", scene.media)):
            opened, refused = await asyncio.to_thread(attack, address)
            assert opened == 5000
            assert refused > 2500, name  # a place is given anew when its holder has said nothing for too long
            limit = f'mediaworker_connections_refused_total{{port="{name}",reason="peer"}}'
            value = next(line for line in scene.worker.get("/metrics").splitlines() if line.startswith(limit))
            assert float(value.split()[-1]) >= refused
            assert await asyncio.to_thread(ask, scene.http, b"GET /healthz HTTP/1.0\r\n\r\n")


async def test_answers_that_nobody_reads(scene: Scene) -> None:
    def attack() -> None:
        held = [attack_socket(scene.http, receive_buffer=1) for _ in range(6)]
        for sock in held:
            with contextlib.suppress(OSError):
                sock.setblocking(False)
                sock.send((b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n") * 250)
        until(lambda: scene.worker.metric("mediaworker_connections") < 3, 30, "they are cut")
        for sock in held:
            sock.close()

    async with trouble(scene):
        await asyncio.to_thread(attack)
        assert scene.worker.metric("mediaworker_http_slow_readers_total") > 0
