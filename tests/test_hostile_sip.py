"""Hostile neighbours on the SIP port: scanners, floods, garbage and idle connections beside a call with speech."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.mutate import MAX_BYTES, Mutator
from fuzz.text import MULTIPART
from sip.gate import STRANGER_BURST
from tests.neighbours import Scene, attack_socket, heard, play, stranger, trouble
from tests.peers import until, worker

TORTURE = Path(__file__).parent / "data/torture"
LIMITS = {"SIP__MAX_CALLS": "4", "SIP__MAX_INVITES_PER_S": "20", "SIP__MAX_TCP": "64"}
FRIENDS = 5
"""Dialogs of calls that were let in; one that was hung up lingers in PJSIP."""
OFFER = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 9 RTP/AVP 0\r\n"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with worker(tmp_path_factory.mktemp("worker"), **LIMITS) as running:
        yield Scene(running, heard(running, play(running, sip=True)), sip=True)


def sip_port(scene: Scene) -> int:
    return scene.worker.sip_port


def request(method: str, number: int, host: str, port: int, body: str = "") -> bytes:
    """As sipvicious sends them."""
    lines = [
        f"{method} sip:100@{host} SIP/2.0",
        f"Via: SIP/2.0/UDP {host}:{port};branch=z9hG4bK-{number};rport",
        "Max-Forwards: 70",
        f'From: "sipvicious" <sip:100@1.1.1.1>;tag={number:x}',
        'To: "sipvicious" <sip:100@1.1.1.1>',
        f"Call-ID: {number}",
        f"CSeq: 1 {method}",
        f"Contact: <sip:100@{host}:{port}>",
        "User-Agent: friendly-scanner",
        *(["Content-Type: application/sdp"] if body else []),
        f"Content-Length: {len(body)}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def udp(source: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((source, 0))
    return sock


def replies(sock: socket.socket, wait_s: float = 0.5) -> Counter[bytes]:
    """Statuses that have come. A call that was answered is acknowledged and ended at once."""
    sock.settimeout(wait_s)
    found: Counter[bytes] = Counter()
    with contextlib.suppress(TimeoutError, BlockingIOError):
        while True:
            data, worker_at = sock.recvfrom(65536)
            found[data.split(b" ")[1]] += 1
            if data.startswith(b"SIP/2.0 200") and b"CSeq: 1 INVITE" in data:
                number = int(re.search(rb"Call-ID: (\d+)", data)[1])
                to = re.search(rb"(?m)^To: .*tag=.*$", data)[0].strip()
                for step, method in enumerate(("ACK", "BYE"), 1):
                    text = request(method, number, *sock.getsockname()).replace(b"CSeq: 1", b"CSeq: %d" % step)
                    sock.sendto(re.sub(rb"(?m)^To: .*\r$", to + b"\r", text), worker_at)
    return found


def flood(scene: Scene, source: str, methods: tuple[str, ...], count: int, *, per_s: int, body: str = "") -> Counter:
    """Paced, so that it is the worker that has to refuse and not the socket's buffer that overflows."""
    found: Counter[bytes] = Counter()
    with udp(source) as sock:
        host, port = sock.getsockname()
        begun = time.monotonic()
        for number in range(count):
            data = request(methods[number % len(methods)], random.getrandbits(48), host, port, body)
            sock.sendto(data, (host, sip_port(scene)))
            if number % 100 == 0:
                found += replies(sock, 0)
                time.sleep(max(0.0, begun + number / per_s - time.monotonic()))
        return found + replies(sock)


async def test_scanners(scene: Scene) -> None:
    """20,000 requests of a stranger: told a few times, then not answered; nothing of them stays in PJSIP."""
    async with trouble(scene):
        methods = ("OPTIONS", "REGISTER", "INVITE")
        found = await asyncio.to_thread(flood, scene, stranger(), methods, 20_000, per_s=4000, body=OFFER)
        assert set(found) == {b"403"}
        assert STRANGER_BURST <= found[b"403"] <= STRANGER_BURST + 10
        assert scene.worker.metric("mediaworker_sip_door_unanswered_total") > 10_000
        assert scene.log().count("SIP request refused") <= 2
        assert scene.worker.metric("mediaworker_sip_dialogs") <= FRIENDS


async def test_refused_calls_take_no_places(scene: Scene) -> None:
    """Strangers who never acknowledge: the next caller has a place all the same."""
    async with trouble(scene):
        await asyncio.to_thread(flood, scene, stranger(), ("INVITE",), 500, per_s=2000, body=OFFER)
        assert scene.worker.metric("mediaworker_sip_dialogs") <= FRIENDS


async def test_a_flood_of_calls_from_a_friend(scene: Scene) -> None:
    """2,000 INVITEs from an address that may call: its rate is 503, a full house 486; calls that are up go on."""

    def attack() -> Counter[bytes]:
        return flood(scene, "127.0.0.1", ("INVITE",), 2000, per_s=400, body=OFFER)

    async with trouble(scene, memory_mb=40):
        found = await asyncio.to_thread(attack)
        assert found[b"503"] > 1000 and found[b"200"] > 1
        assert not set(found) - {b"100", b"200", b"486", b"503"}


def torture() -> list[bytes]:
    """After RFC 4475, and worse."""
    good = request("OPTIONS", 1, "127.0.0.1", 5060)
    head, blank = good[:-2], b"\r\n"
    dice = random.Random(1)
    made = [
        b"",
        b"\r\n\r\n",
        b"\0" * 500,
        good.replace(b"CSeq: 1 OPTIONS", b"CSeq: 36893488147419103232 REGISTER"),
        good.replace(b"CSeq: 1 OPTIONS", b"CSeq: 1 INVITE"),
        good.replace(b"Content-Length: 0", b"Content-Length: -999"),
        good.replace(b"Content-Length: 0", b"Content-Length: 9999999999"),
        good.replace(b"SIP/2.0\r\n", b"SIP/7.0\r\n", 1),
        good.replace(b"Max-Forwards: 70", b"Max-Forwards: 300"),
        good.replace(b"OPTIONS sip:", b"OPTIONS nobodyKnowsThisScheme:", 1),
        good.replace(b"OPTIONS sip:100@127.0.0.1 ", b"OPTIONS <sip:100@127.0.0.1> ", 1),
        good.replace(b'"sipvicious" <sip:100@1.1.1.1>;', b'"Mr. J. User <sip:100@1.1.1.1>;', 1),
        good.replace(b"Call-ID: 1\r\n", b""),
        good.replace(b"Via: ", b"Via: ,,,,"),
        good.replace(b"To: ", b"To: \xff\xfe"),
        head + b"To: <sip:a@b>\r\nFrom: <sip:c@d>;tag=9\r\nCall-ID: 2\r\n" + blank,
        head + b"Contact: " + b"<sip:a@b>," * 1000 + b"<sip:c@d>\r\n" + blank,
        head + b"X-Long: " + b"A" * 60_000 + b"\r\n" + blank,
        head + b"Via: SIP/2.0/UDP 127.0.0.1;branch=z9hG4bKx\r\n" * 300 + blank,
        head + b"".join(b"X-%d: 1\r\n" % n for n in range(700)) + blank,
        head + b"Require: nothingSupportsThis\r\n" + blank,
        head + b"Route: <sip:127.0.0.1;lr>\r\n" * 50 + blank,
        b"INVITE sip:x SIP/2.0\r\n\r\n",
        b"SIP/2.0 200 OK\r\n\r\n",
        b"SIP/2.0 4294967301 better not break the receiver\r\n" + good.partition(b"\r\n")[2],
        request("INVITE", 3, "127.0.0.1", 5060, "v=0\r\n" + "m=audio 1 RTP/AVP 0\r\n" * 500),
        request("INVITE", 4, "127.0.0.1", 5060, "\0" * 1000),
        request("INVITE", 5, "127.0.0.1", 5060, "v=0\r\no=- 9 9 IN IP4 x\r\ns=-\r\nm=audio 99999 RTP/AVP 0\r\n"),
    ]
    for _ in range(1500):  # one to four bytes of a good message changed, or cut off
        data = bytearray(request("OPTIONS", dice.getrandbits(32), "127.0.0.1", 5060))
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        made.append(bytes(data[: dice.randrange(1, len(data))] if dice.random() < 0.3 else data))
    made += [dice.randbytes(dice.randint(1, 1400)) for _ in range(500)]
    return made


async def test_what_is_not_sip(scene: Scene) -> None:
    """Broken and random datagrams, from an address that may call; the same over TCP."""

    def attack() -> None:
        with udp("127.0.0.1") as sock:
            for number, data in enumerate(torture()):
                sock.sendto(data, ("127.0.0.1", sip_port(scene)))
                if number % 20 == 0:
                    time.sleep(0.01)
            replies(sock)
        for data in torture()[:60]:
            with contextlib.closing(attack_socket(("127.0.0.1", sip_port(scene)))) as stream:
                with contextlib.suppress(OSError):
                    stream.sendall(data)
                    stream.settimeout(0.01)
                    stream.recv(4096)

    async with trouble(scene):
        await asyncio.to_thread(attack)


MUTATED = int(os.environ.get("FUZZ_WIRE", "6000"))
"""`make fuzz` sends more."""
EACH_CALL = 15_000


async def test_mutated_messages(scene: Scene) -> None:
    """Requests and responses with parts changed, by the tens of thousands, at PJSIP and all that is behind it."""
    host, port = "127.0.0.1", sip_port(scene)
    methods = ("INVITE", "OPTIONS", "BYE", "CANCEL", "ACK", "UPDATE", "PRACK", "INFO", "REFER", "REGISTER", "NOTIFY")
    seeds = [request(method, 7, host, port, OFFER if method in ("INVITE", "UPDATE") else "") for method in methods]
    seeds.append(request("INVITE", 7, host, port)[:-2].replace(b"Content-Length: 0\r\n", b"") + MULTIPART)
    seeds.append(seeds[0].replace(b"INVITE sip:100@127.0.0.1 SIP/2.0", b"SIP/2.0 200 OK", 1))
    seeds += [path.read_bytes()[:MAX_BYTES] for path in sorted(TORTURE.glob("*.dat"))]
    words = (
        b"Require: 100rel\r\n",
        b"Supported: timer\r\nSession-Expires: 90\r\n",
        b"Replaces: x;to-tag=1;from-tag=2\r\n",
        b";tag=",
    )
    mutator = Mutator(seeds, words, seed=int(os.environ.get("FUZZ_SEED", "1")))

    def attack(count: int) -> None:
        with udp(host) as sock:
            for number in range(count):
                data = mutator.next().replace(b"Call-ID: 7", b"Call-ID: %d" % random.getrandbits(48))
                sock.sendto(data, (host, port))
                if number % 40 == 0:
                    replies(sock, 0.02)

    for begun in range(0, MUTATED, EACH_CALL):
        async with trouble(scene, memory_mb=40, lines=400):
            await asyncio.to_thread(attack, min(EACH_CALL, MUTATED - begun))
        # Calls that were taken and have no media end by themselves; then there is room for the next one.
        await asyncio.to_thread(until, lambda: scene.worker.metric("mediaworker_calls_active") == 0, 90)
    await asyncio.to_thread(until, lambda: scene.worker.metric("mediaworker_sip_dialogs") <= FRIENDS, 60)


async def test_connections_that_say_nothing(scene: Scene) -> None:
    """Half-open TCP: bounded at once, closed after ten seconds, and a header without an end is no way around it."""

    def attack() -> None:
        where = ("127.0.0.1", sip_port(scene))
        held = [attack_socket(where) for _ in range(150)]
        for number, sock in enumerate(held):
            with contextlib.suppress(OSError):
                sock.sendall(b"I" if number % 2 else b"INVITE sip:x SIP/2.0\r\nX: " + b"A" * 20_000)
        until(lambda: scene.worker.metric("mediaworker_sip_door_tcp_refused_total") >= 80, 20)
        assert scene.worker.metric("mediaworker_sip_tcp") <= 64
        for sock in held:
            with contextlib.suppress(OSError):
                sock.settimeout(20)
                while sock.recv(4096):
                    pass
            sock.close()
        until(lambda: scene.worker.metric("mediaworker_sip_tcp") == 0, 20)
        near = [attack_socket((stranger(), sip_port(scene)), source=stranger()) for _ in range(40)]
        until(lambda: 1 <= scene.worker.metric("mediaworker_sip_tcp") <= 16, 5)
        for sock in near:
            sock.close()

    async with trouble(scene):
        await asyncio.to_thread(attack)
