"""Names where addresses usually are: nobody waits for a name server but who is to be asked for."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from config.load import parse
from lab.network.ports import free_port, port_range
from lab.patience import timeout
from lab.sip.endpoint import CODES, Recorder, played, until, worker
from lab.sip.rtp_sender import RtpSender
from lab.sip.scenes import media, quick
from lab.sip.sip_peer import SipPeer, sdp
from sip.pjsip import resolver
from sip.pjsip.endpoint import SipEndpoint


@pytest.fixture
def sender() -> Iterator[RtpSender]:
    with closing(RtpSender()) as made:
        yield made


def named(endpoint: Any, name: str) -> SipPeer:
    """A caller whose Contact is a name."""
    caller = SipPeer(endpoint.port)
    caller.contact = f"<sip:4711@{name}:{caller.port}>"
    return caller


async def test_a_contact_may_be_a_name() -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        with closing(named(endpoint, "localhost")) as caller:
            await caller.invite(sdp(40000))
            handler.calls[0].hangup()
            caller.reply(await caller.request("BYE"), "200 OK")
            await until(lambda: endpoint.calls == 0)


async def test_a_contact_that_nobody_knows_ends_its_own_call_all_the_same() -> None:
    handler = Recorder()
    with quick():
        async with worker(handler) as endpoint:
            with closing(named(endpoint, "nobody.invalid")) as caller:
                await caller.invite(sdp(40000))
                handler.calls[0].hangup()
                await until(lambda: endpoint.calls == 0)
                assert ("end", "local") in handler.log
                assert not any(message.start_line.startswith("BYE") for message in caller.heard)


async def test_a_name_server_that_is_silent_holds_up_nobody_else(
    sender: RtpSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Event(), threading.Event()

    def wait(name: str, port: object) -> list[Any]:
        asked.set()
        assert answers.wait(20)
        return socket.getaddrinfo("127.0.0.1", None)

    handler = Recorder()
    async with worker(handler) as endpoint:
        monkeypatch.setattr(resolver, "getaddrinfo", wait)
        with closing(named(endpoint, "slow.example")) as caller, closing(SipPeer(endpoint.port)) as other:
            await caller.invite(sdp(40000))
            handler.calls[0].hangup()
            await until(asked.is_set)
            port, _ = media(await other.invite(sdp(sender.port)))
            await sender.talk(CODES, port)
            await until(lambda: played(handler.audio[other.call_id]) == CODES)
            await other.bye()
            assert not any(message.start_line.startswith("BYE") for message in caller.heard)
            answers.set()
            caller.reply(await caller.request("BYE"), "200 OK")
            await until(lambda: endpoint.calls == 0)


async def test_the_end_does_not_wait_for_a_name(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(resolver, "getaddrinfo", lambda name, port: [] if answers.wait(20) else [])
    handler, first = Recorder(), port_range(400)[0]
    sip = {"host": "127.0.0.1", "port": free_port()}
    endpoint = SipEndpoint(parse({"sip": sip, "rtp": {"port_min": first, "port_max": first + 399}}), handler)
    try:
        await endpoint.start()
        with closing(named(endpoint, "slow.example")) as caller:
            await caller.invite(sdp(40000))
            async with timeout(8):  # two seconds for the BYE, which cannot go out, and no more
                await endpoint.stop()
            await asyncio.sleep(0)
    finally:
        answers.set()
    assert "Traceback" not in "".join(capfd.readouterr())


async def test_nothing_is_found_once_the_end_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """PJSIP asks while it ends, for what it has still to send."""
    asked: list[str] = []
    monkeypatch.setattr(resolver, "getaddrinfo", lambda name, port: asked.append(name) or [])
    handler = Recorder()
    with quick():
        async with worker(handler) as endpoint:
            assert endpoint._stack is not None and endpoint._stack._resolver is not None
            endpoint._stack._resolver.close()
            with closing(named(endpoint, "late.example")) as caller:
                await caller.invite(sdp(40000))
                handler.calls[0].hangup()
                await until(lambda: endpoint.calls == 0)
                assert not asked and not endpoint._stack._resolver._tasks


@pytest.mark.parametrize("late", [False, True], ids=["offer", "answer in the ACK"])
async def test_media_at_a_name_is_learned_from_its_packets(sender: RtpSender, late: bool) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        with closing(SipPeer(endpoint.port)) as caller:
            body = sdp(sender.port, f"a=rtcp:{sender.port + 1} IN IP4 media.invalid", address="media.invalid")
            if late:
                cseq = caller.send("INVITE")
                port, _ = media(await caller.answer(cseq, status=200))
                caller.send("ACK", body, cseq=cseq)
                await until(lambda: bool(handler.calls))
            else:
                port, _ = media(await caller.invite(body))
            assert handler.calls[0].streams[0].socket._latch.expected is None
            await sender.talk(CODES, port)
            await until(lambda: played(handler.audio[caller.call_id]) == CODES)
            await until(lambda: bool(sender.take()))
            await caller.bye()
