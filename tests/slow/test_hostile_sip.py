"""Hostile neighbours on the SIP port: scanners, floods, garbage and idle connections beside a call with speech."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.chaos.neighbours import DIALLED, Scene, attack_socket, heard, play, stranger, trouble
from lab.patience import until
from lab.worker.peers import worker
from sip.admission.request_filter import UNTRUSTED_BURST
from tools.fuzz import profiles
from tools.fuzz.mutate import MAX_BYTES, Mutator
from tools.fuzz.text import MULTIPART

TORTURE = Path(__file__).parents[1] / "data/torture"
LIMITS = {
    "SIP__MAX_CALLS": "4", "SIP__MAX_INVITES_PER_S": "20", "SIP__MAX_TCP": "64",
    "RTP__JITTER_MS": "1000",  # the caller shares the processor with the attack: a late packet is not lost
}  # fmt: skip
WITHIN = b"within"
FRIENDS = 5
"""Dialogs of calls that were let in; one that was hung up lingers in PJSIP."""
OFFER = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 9 RTP/AVP 0\r\n"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with worker(tmp_path_factory.mktemp("worker"), **LIMITS) as running:
        yield Scene(running, heard(running, play(running, sip=True)), sip=True)


@pytest.fixture(scope="module")
def unhurried(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One that takes every call, so that what is wrong with an offer reaches those who read offers."""
    limits = LIMITS | {"SIP__MAX_CALLS": "300", "SIP__MAX_INVITES_PER_S": "5000", "SIP__MEDIA_TIMEOUT_S": "5"}
    with worker(tmp_path_factory.mktemp("unhurried"), **limits) as running:
        yield Scene(running, scene.undisturbed, sip=True)


def sip_port(scene: Scene) -> int:
    return scene.worker.sip_port


def request(method: str, number: int, host: str, port: int, body: str | bytes = "") -> bytes:
    """As sipvicious sends them."""
    body = body.encode() if isinstance(body, str) else body
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
    return "\r\n".join([*lines, "", ""]).encode() + body


def udp(source: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((source, 0))
    return sock


def replies(
    sock: socket.socket, wait_s: float = 0.5, change: Callable[[bytes, int], list[bytes]] | None = None
) -> Counter:
    """Statuses that have come. A call that was answered is acknowledged and ended at once; before that it gets the
    requests of `change(To, number)`, which are counted as `WITHIN`."""
    sock.settimeout(wait_s)
    found: Counter[bytes] = Counter()
    with contextlib.suppress(TimeoutError, BlockingIOError):
        while True:
            data, worker_at = sock.recvfrom(65536)
            found[data.split(b" ")[1]] += 1
            call_id = re.search(rb"Call-ID: (\d+)", data)  # a mutation may have made another of it
            if data.startswith(b"SIP/2.0 200") and b"CSeq: 1 INVITE" in data and call_id is not None:
                number = int(call_id[1])
                to = re.search(rb"(?m)^To: .*tag=.*$", data)[0].strip()
                changes = change(to, number) if change else []
                found.update([WITHIN] * len(changes))
                ends = [request(method, number, *sock.getsockname()) for method in ("ACK", "BYE")]
                ends = [re.sub(rb"(?m)^To: .*\r$", to + b"\r", text) for text in ends]
                for step, text in enumerate((ends[0], *changes, ends[1]), 1):
                    sock.sendto(text.replace(b"CSeq: 1", b"CSeq: %d" % step, 1), worker_at)
    return found


def waiting(port: int) -> int:
    """Bytes in the receive buffer of a UDP port: what does not fit any more is dropped, and tries nothing."""
    rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if int(row[1].partition(":")[2], 16) == port)


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
        assert UNTRUSTED_BURST <= found[b"403"] <= UNTRUSTED_BURST + 10
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
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
"""`make fuzz-asan`: what is freed rests for a while, so memory says nothing."""
EACH_CALL = 15_000


async def test_mutated_messages(unhurried: Scene) -> None:
    """Requests and responses with parts changed, by the tens of thousands, at PJSIP and all that is behind it: whole
    messages, and proper ones with offers of every profile that are not, outside of a dialog and within it."""
    scene, host, port = unhurried, "127.0.0.1", sip_port(unhurried)
    seed = int(os.environ.get("FUZZ_SEED", "1"))
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
    messages = Mutator(seeds, words, seed)
    offers = Mutator(profiles.PROFILES, profiles.WORDS, seed)

    def change(to: bytes, number: int) -> list[bytes]:
        """Requests within a dialog, with offers of their own."""
        methods = ("UPDATE", "UPDATE", "INVITE")
        texts = (request(method, number, host, port, offers.next()) for method in methods)
        return [re.sub(rb"(?m)^To: .*\r$", lambda _: to + b"\r", text) for text in texts]

    def attack(count: int) -> None:
        sent = 0
        with udp(host) as sock:
            while sent < count:
                if sent % 2:
                    sock.sendto(request("INVITE", random.getrandbits(48), host, port, offers.next()), (host, port))
                else:
                    text = messages.next().replace(b"Call-ID: 7", b"Call-ID: %d" % random.getrandbits(48))
                    sock.sendto(text, (host, port))
                sent += 1
                if sent % 20 == 0:
                    sent += replies(sock, 0.01, change)[WITHIN]
                    until(lambda: not waiting(port))

    def end() -> None:
        """Calls whose callers cannot end them any more; those on hold would stay for an hour."""
        for call in scene.worker.every_call():
            if call["to"] != DIALLED and not call["ended_at"]:
                with contextlib.suppress(urllib.error.HTTPError):  # it has ended by itself
                    urllib.request.urlopen(f"{scene.worker.url}/v1/calls/{call['call_id']}/hangup", b"", 10).close()

    for begun in range(0, MUTATED, EACH_CALL):
        # PJSIP keeps the dialog of a call for 32 s, and a connection to a Contact that somebody made up for longer.
        async with trouble(scene, memory_mb=4000 if SANITIZED else 250, lines=2000, fds=16):
            await asyncio.to_thread(attack, min(EACH_CALL, MUTATED - begun))
            await asyncio.to_thread(end)
        # Calls that were taken and have no media end by themselves; then there is room for the next one.
        await asyncio.to_thread(until, lambda: scene.worker.metric("mediaworker_calls_active") == 0, 90)
    await asyncio.to_thread(until, lambda: scene.worker.metric("mediaworker_sip_dialogs") <= FRIENDS, 60)


KEY = "inline:" + "WnD7c1ksDGs+dIefCEo8omPg4uO8DYIinNGL5yxQ"


def crypto(count: int, first: str = "") -> str:
    """An offer of SRTP with `count` keys, each of a tag of its own; the first may be of another suite."""
    suites = [first or "AES_CM_128_HMAC_SHA1_80", *["AES_CM_128_HMAC_SHA1_80"] * count][:count]
    lines = [f"a=crypto:{tag} {suite} {KEY}\r\n" for tag, suite in enumerate(suites, 1)]
    return OFFER.replace("RTP/AVP", "RTP/SAVP") + "".join(lines)


TOO_MUCH = {
    **{f"{count} keys": crypto(count) for count in (64, 65, 200, 700)},
    "200 keys, the first of a suite that nobody has": crypto(200, "AES_CM_4096"),
    **{f"{count} attributes": OFFER + "a=ssrc:1 cname:x\r\n" * count for count in (255, 256, 257, 3000)},
    "300 attributes of the session": OFFER.replace("t=0 0\r\n", "t=0 0\r\n" + "a=x\r\n" * 300),
    **{f"{count} streams": OFFER + "m=audio 9 RTP/AVP 0\r\n" * (count - 1) for count in (16, 17, 64, 65, 2000)},
    "40 streams of text": OFFER + "m=text 9 RTP/AVP 98\r\na=rtpmap:98 t140/1000\r\n" * 40,
    "200 formats": OFFER.replace("RTP/AVP 0", "RTP/AVP 0 " + " ".join(map(str, range(1, 201)))),
    "200 formats that are equal": OFFER.replace("RTP/AVP 0", "RTP/AVP" + " 0" * 200),
    "bandwidths": OFFER.replace("t=0 0\r\n", "b=AS:64\r\n" * 100 + "t=0 0\r\n" + "t=1 1\r\n" * 100),
    "a format of redundancy beside one without a name": OFFER.replace("AVP 0", "AVP 98 0 097")
    + "a=rtpmap:98 red/8000\r\na=fmtp:98 0/0/0\r\na=rtpmap:65535 PCMU/8000\r\na=fmtp:65535 0\r\n",
    "a clock that wraps": OFFER + "a=rtpmap:0 PCMU/4294975296\r\na=rtcp:4294967305\r\na=ssrc:99999999999 cname:x\r\n",
    "58 kB": OFFER + "a=x:" + "y" * 58_000 + "\r\n",
}
"""Offers with more than PJSIP has room for, and with what upstream has mended since the release."""


async def test_offers_with_more_than_there_is_room_for(unhurried: Scene) -> None:
    """Each is answered, beside a call that goes on; 200 keys had overflowed the stack of PJSIP."""
    scene, host, port = unhurried, "127.0.0.1", sip_port(unhurried)
    names = [*TOO_MUCH, "a body of parts that has none", "XML deeper than a stack"]
    texts = [request("INVITE", 7_000 + number, host, port, body) for number, body in enumerate(TOO_MUCH.values())]
    parts = request("INVITE", 7_900, host, port, "--b--\r\n")
    texts.append(parts.replace(b"application/sdp", b"multipart/mixed;boundary=b"))
    typing = request("MESSAGE", 7_901, host, port, "<a>" * 20_000)  # RFC 3994
    texts.append(typing.replace(b"application/sdp", b"application/im-iscomposing+xml"))

    def answered(sock: socket.socket, text: bytes) -> set[bytes]:
        sock.sendto(text, (host, port))
        seen: set[bytes] = set()
        until(lambda: seen.update(replies(sock, 0.05)) or seen - {b"100", b"180"}, 10, f"an answer to {text[:400]!r}")
        return seen

    def attack() -> dict[str, set[bytes]]:
        with udp(host) as sock:
            return {name: answered(sock, text) for name, text in zip(names, texts, strict=True)}

    async with trouble(scene, lines=60):
        statuses = await asyncio.to_thread(attack)
    assert not {name: found for name, found in statuses.items() if any(status >= b"500" for status in found)}
    await asyncio.to_thread(until, lambda: scene.worker.metric("mediaworker_calls_active") == 0, 60)


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
