"""Answers go to where a request came from and nowhere else, and a source that somebody made up costs it few of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from dataclasses import replace
from typing import Any

import pytest

from lab.patience import timeout
from lab.sip.endpoint import Recorder, until, worker
from lab.sip.headers import STRANGER, request
from lab.sip.sip_peer import sdp
from sip.admission import request_filter
from sip.admission.request_filter import DROP, UNTRUSTED_BURST, RequestFilter, RequestHead, TokenBuckets
from sip.pjsip import resolver

KNOWN = [{"user": "sbc", "password": "secret"}]

VICTIM = "127.0.0.2"
_numbers = itertools.count(1)


def udp(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.bind((host, port))
    return made


def message(method: str, sent_by: str, parameters: str, *, tag: str = "", body: str = "") -> bytes:
    number = next(_numbers)
    lines = [
        f"{method} sip:1000@127.0.0.1 SIP/2.0",
        f"Via: SIP/2.0/UDP {sent_by};branch=z9hG4bK{number}{parameters}",
        "Max-Forwards: 70",
        f"Record-Route: <sip:{VICTIM};lr>",
        f"From: <sip:a@{VICTIM}>;tag=1",
        f"To: <sip:1000@127.0.0.1>{tag}",
        f"Call-ID: reflected-{number}",
        f"CSeq: 1 {method}",
        f"Contact: <sip:a@{VICTIM}>",
        *(["Content-Type: application/sdp"] if body else []),
        f"Content-Length: {len(body)}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def received(sock: socket.socket) -> list[bytes]:
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(sock.recv(65536))
    return found


@pytest.mark.parametrize("trusted", [(), ("127.0.0.0/8",)], ids=["strangers", "friends"])
async def test_a_via_does_not_aim_answers(monkeypatch: pytest.MonkeyPatch, trusted: tuple[str, ...]) -> None:
    looked_up: list[str] = []

    def no_name(name: str, port: object) -> list[Any]:
        looked_up.append(name)
        raise OSError

    monkeypatch.setattr(resolver, "getaddrinfo", no_name)
    handler = Recorder()
    handler.refuse = 486
    async with worker(handler, trusted=trusted) as endpoint:
        with udp(VICTIM) as victim:
            port = victim.getsockname()[1]
            aims = [
                f";maddr={VICTIM}",
                f";rport;maddr={VICTIM}",
                f";ttl=16;maddr={VICTIM}",
                ";maddr=name.of.a.host.example",
                f";received={VICTIM};rport={port}",
                f";rport;received={VICTIM}",
                f";rport={port};maddr={VICTIM};received={VICTIM}",
            ]
            vias = [("", aim) for aim in aims] + [("host.example", ""), (VICTIM, ";rport"), (VICTIM, "")]
            methods = [("OPTIONS", ""), ("INVITE", ""), ("BYE", ";tag=x"), ("REGISTER", "")]
            for number, ((method, tag), (sent_by, aim)) in enumerate(itertools.product(methods, vias), 1):
                body = sdp(40000) if method == "INVITE" else ""
                with udp(f"127.0.1.{number}", port) as own:
                    sent = message(method, f"{sent_by or own.getsockname()[0]}:{port}", aim, tag=tag, body=body)
                    own.sendto(sent, ("127.0.0.1", endpoint.port))
                    async with timeout(5):
                        answers = [await asyncio.get_running_loop().sock_recv(own, 65536)]
                    answers += received(own)
                    status = {each.split()[1] for each in answers}
                    assert trusted or status <= {b"403", b"481"}, status
                    # Who asks for nobody's credentials answers nothing that is longer than the question.
                    assert trusted or len(answers) == 1 and len(answers[0]) <= len(sent)
            assert received(victim) == [] and looked_up == []


async def test_the_bound_on_a_source_outlives_thousands_of_others() -> None:
    """One address is flooded in its name, before and after 5,000 other addresses were seen."""
    async with worker(Recorder(), trusted=(), users=KNOWN) as endpoint:
        with udp(VICTIM) as victim:
            spent, begun_s = 0, asyncio.get_running_loop().time()
            heard: list[bytes] = []

            async def flood(count: int) -> None:
                nonlocal spent
                for number in range(count):
                    each = message("INVITE", VICTIM, ";rport")
                    spent += len(each)
                    victim.sendto(each, ("127.0.0.1", endpoint.port))
                    if number % 20 == 0:
                        await asyncio.sleep(0.001)
                        heard.extend(received(victim))

            await flood(100)
            for number in range(5000):
                with udp(f"127.{1 + number // 60000}.{number // 250 % 250}.{1 + number % 250}") as other:
                    other.sendto(message("OPTIONS", "127.0.0.1", ";rport"), ("127.0.0.1", endpoint.port))
                if number % 50 == 0:
                    await asyncio.sleep(0.001)
            await flood(100)
            with udp("127.1.0.1") as last:  # one of the others, which is answered when all before it has been read
                last.sendto(message("OPTIONS", "127.0.0.1", ";rport"), ("127.0.0.1", endpoint.port))
                async with timeout(10):
                    await asyncio.get_running_loop().sock_recv(last, 65536)
            heard.extend(received(victim))
            # Ten at once, and one every five seconds.
            later = (asyncio.get_running_loop().time() - begun_s) / 5
            assert UNTRUSTED_BURST <= len(heard) <= UNTRUSTED_BURST + later + 1
            assert sum(map(len, heard)) < spent / 4


def test_a_full_table_drops_newcomers_and_forgets_nobody_who_is_still_owed_silence() -> None:
    sources = [f"2001:db8:0:{number:x}::1" for number in range(request_filter._MAX_SOURCES)]
    filter_ = RequestFilter(lambda source: False, lambda: 0, invites_per_s=5.0)
    for _ in range(UNTRUSTED_BURST):
        assert filter_.check(request("OPTIONS", STRANGER), 0.0) == 403
    verdicts = {filter_.check(request("OPTIONS", source), 0.0) for source in sources[1:]}
    assert verdicts == {403}
    assert filter_.check(request("OPTIONS", "198.51.100.1"), 0.0) == DROP, "there is no room"
    assert filter_.check(replace(request("OPTIONS", "198.51.100.1"), connected=True), 0.0) == 403, "over TCP there is"
    assert filter_.check(request("OPTIONS", STRANGER), 1.0) == DROP
    assert filter_.check(request("OPTIONS", STRANGER), 5.1) == 403
    # The others have been quiet for so long that forgetting them gives them nothing.
    assert filter_.check(request("OPTIONS", "198.51.100.1"), 60.0) == 403


def test_a_bucket_that_is_full_again_is_forgotten() -> None:
    buckets = TokenBuckets(1.0, 2.0)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert buckets.take("b", 1.0) and "a" in buckets
    assert buckets.take("c", 2.5) and "a" not in buckets and "b" not in buckets
    assert buckets.level("a", 2.5) == 2.0


async def test_connections_are_told_from_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    check = RequestFilter.check

    def watch(self: RequestFilter, request: RequestHead, *more: Any) -> int:
        seen.append((request.method, request.connected))
        return check(self, request, *more)

    monkeypatch.setattr(RequestFilter, "check", watch)
    async with worker(Recorder(), trusted=()) as endpoint:
        with udp() as own:
            own.sendto(message("OPTIONS", "127.0.0.1", ";rport"), ("127.0.0.1", endpoint.port))
            await asyncio.get_running_loop().sock_recv(own, 65536)
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(message("BYE", "127.0.0.1", ";rport", tag=";tag=x").replace(b"SIP/2.0/UDP", b"SIP/2.0/TCP"))
        assert (await reader.readline()).startswith(b"SIP/2.0 481")
        writer.close()
        assert seen == [("OPTIONS", False), ("BYE", True)]
        await until(lambda: len(endpoint.admission.connections) == 0)
