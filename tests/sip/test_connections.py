"""A peer that comes back by another connection: what the worker asks for goes where its newest request came from."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator

import pytest

from lab.sip.endpoint import Recorder, until, worker
from lab.sip.pjsip_clock import PjsipClock, pjsip_clock
from lab.sip.scenes import STARTED
from lab.sip.sip_peer import ConnectedPeer, SipPeer, sdp
from lab.sip.sipp_scenario import Body, mixed
from lab.sip.siprec import REQUIRE, metadata
from sip.pjsip import call_control
from sip.pjsip.endpoint import SipEndpoint
from sip.protocol import liveness

NEVER_ASKED = {"peer_check_s": 3600.0}
"""For nothing but the end of its connection."""
WORKER_REFRESHES = ("Session-Expires: 90;refresher=uas", "Supported: timer", "Allow: INVITE, ACK, BYE, CANCEL, UPDATE")


@contextlib.asynccontextmanager
async def called(
    *headers: str, **sip: object
) -> AsyncIterator[tuple[Recorder, SipEndpoint, ConnectedPeer, PjsipClock]]:
    """A call by a connection, and another connection that the caller will use from now on."""
    handler = Recorder()
    with pjsip_clock() as clock:
        async with worker(handler, left_open=8, **sip) as endpoint:
            caller = ConnectedPeer(endpoint.port)
            await caller.connect()
            await caller.invite(sdp(40000), *headers)
            await until(lambda: handler.log == [STARTED])
            await caller.connect()
            yield handler, endpoint, caller, clock
            caller.close()
            await until(lambda: endpoint.calls == 0)
            clock.forward(64)


async def hung_up(handler: Recorder, caller: ConnectedPeer) -> int:
    """The connection by which the worker's BYE comes."""
    handler.calls[0].hangup()
    caller.reply(await caller.request("BYE"), "200 OK")
    await until(lambda: handler.log[-1] == ("end", "local"))
    return next(number for number, line in caller.heard_by if line.startswith("BYE "))


async def stranger_to(caller: ConnectedPeer, port: int, case: str) -> ConnectedPeer:
    """Another peer, connected, that knows the caller's dialog but for what the case names."""
    stranger = ConnectedPeer(port)
    stranger.call_id, stranger.tag, stranger.to_tag = caller.call_id, caller.tag, caller.to_tag
    match case:
        case "another From tag":
            stranger.tag += "x"
        case "another To tag":
            stranger.to_tag = "x" + stranger.to_tag
        case "another Call-ID":
            stranger.call_id += "x"
    await stranger.connect()
    return stranger


REQUESTS = {
    "re-INVITE": ("INVITE", sdp(40002, version=2)),
    "re-INVITE without an offer": ("INVITE", ""),
    "UPDATE": ("UPDATE", sdp(40002, version=2)),
    "INFO": ("INFO", "5", "Content-Type: application/dtmf"),
    "OPTIONS": ("OPTIONS", ""),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_the_newest_connection_is_used(name: str) -> None:
    """Also for the next one after it, and although the ones before are still open."""
    method, *content = REQUESTS[name]
    async with called() as (handler, _, caller, _):
        for _ in range(2):
            number = caller.send(method, *content)
            assert (await caller.answer(number, method)).start_line == "SIP/2.0 200 OK"
            if method == "INVITE":
                caller.send("ACK", "" if content[0] else sdp(40000, version=3), cseq=number)
            await caller.connect()
        await caller.answer(caller.send("OPTIONS"), "OPTIONS")
        assert await hung_up(handler, caller) == 3


async def test_a_refresh_and_a_question_go_there_too() -> None:
    async with called(*WORKER_REFRESHES) as (handler, _, caller, clock):
        await caller.answer(caller.send("OPTIONS"), "OPTIONS")
        clock.forward(46)
        refresh = await caller.request("UPDATE")
        caller.reply(refresh, "200 OK", "", "Session-Expires: 90;refresher=uac", "Require: timer")
        handler.calls[0].send_options()
        caller.reply(await caller.request("OPTIONS"), "200 OK")
        assert {line.split()[0]: number for number, line in caller.heard_by if "SIP/2.0 " not in line[:8]} == {
            "UPDATE": 1, "OPTIONS": 1,
        }  # fmt: skip
        await caller.disconnect(0)
        assert await hung_up(handler, caller) == 1


async def test_a_connection_without_a_request_is_not_used() -> None:
    async with called() as (handler, _, caller, _):
        assert await hung_up(handler, caller) == 0


@pytest.mark.parametrize("case", ["another From tag", "another To tag", "another Call-ID", "an old CSeq"])
async def test_somebody_elses_connection_is_not_used(case: str) -> None:
    async with called() as (handler, endpoint, caller, _):
        await caller.answer(caller.send("OPTIONS"), "OPTIONS")
        await caller.answer(caller.send("UPDATE"), "UPDATE")
        stranger = await stranger_to(caller, endpoint.port, case)
        cseq = 1 if case == "an old CSeq" else 5000
        for method in ("UPDATE", "INFO", "OPTIONS"):
            answer = await stranger.answer(stranger.send(method, cseq=cseq), method)
            assert " 200 " not in answer.start_line or case == "an old CSeq" and method != "UPDATE"
        assert await hung_up(handler, caller) == 1
        stranger.close()


async def test_a_connection_that_has_ended_is_followed_by_what_is_left() -> None:
    """The worker forgets none of its own transports: the endpoint ends with none in use."""
    async with called() as (handler, endpoint, caller, _):
        await caller.answer(caller.send("OPTIONS"), "OPTIONS")
        await caller.disconnect(1)
        caller._writers.pop()
        caller._readers.pop()
        await caller.connect()
        await caller.answer(caller.send("OPTIONS"), "OPTIONS")
        assert await hung_up(handler, caller) == 1


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost connection is looked for twenty times a second, and who cannot be reached then is soon given up."""
    monkeypatch.setattr(call_control, "_SWEEP_S", 0.05)
    monkeypatch.setattr(liveness, "REFUSED_S", 0.3)
    monkeypatch.setattr(liveness, "DOUBT_S", 0.2)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("name", REQUESTS)
async def test_the_end_of_the_newest_connection_is_noticed(name: str) -> None:
    """At once, as that of the INVITE's: nobody can be reached where the Contact says."""
    method, *content = REQUESTS[name]
    async with called(**NEVER_ASKED) as (handler, endpoint, caller, _):
        number = caller.send(method, *content)
        await caller.answer(number, method)
        if method == "INVITE":
            caller.send("ACK", "" if content[0] else sdp(40000, version=3), cseq=number)
        await caller.answer(caller.send("OPTIONS"), "OPTIONS")
        await caller.disconnect(1)
        await until(lambda: handler.log[-1] == ("end", "timeout"))
        assert endpoint.counters.peers_lost == 1


@pytest.mark.usefixtures("hasty")
async def test_the_end_of_a_connection_that_has_been_left_raises_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    async with called(**NEVER_ASKED) as (handler, endpoint, caller, _):
        swept, sweep = list[float](), endpoint.control.peers.sweep
        await caller.answer(caller.send("OPTIONS"), "OPTIONS")
        monkeypatch.setattr(endpoint.control.peers, "sweep", lambda now: swept.append(now) or sweep(now))
        await caller.disconnect(0)
        await until(lambda: len(swept) > 20)
        await caller.disconnect(1)
        await until(lambda: handler.log[-1] == ("end", "timeout"))
        assert endpoint.counters.peers_asked == 1
        assert not any(line.startswith("OPTIONS ") for _, line in caller.heard_by)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("case", ["another From tag", "another To tag", "an old CSeq", "CANCEL", "no request"])
async def test_the_end_of_somebody_elses_connection_is_nothing_to_the_call(case: str) -> None:
    async with called(**NEVER_ASKED) as (handler, endpoint, caller, _):
        await caller.answer(caller.send("UPDATE"), "UPDATE")
        stranger = await stranger_to(caller, endpoint.port, case)
        method = "CANCEL" if case == "CANCEL" else "UPDATE"
        if case != "no request":
            await stranger.answer(stranger.send(method, cseq=1 if case == "an old CSeq" else 5000), method)
        await stranger.disconnect(0)
        await caller.answer(caller.send("OPTIONS"), "OPTIONS")
        await caller.disconnect(1)
        await until(lambda: handler.log[-1] == ("end", "timeout"))
        assert endpoint.counters.peers_asked == 1
        assert not any(line.startswith("OPTIONS ") for _, line in caller.heard_by)
        stranger.close()


@pytest.mark.usefixtures("hasty")
async def test_a_call_that_began_without_a_connection_may_have_one_later() -> None:
    handler = Recorder()
    async with worker(handler, **NEVER_ASKED) as endpoint:
        first, caller = SipPeer(endpoint.port), ConnectedPeer(endpoint.port)
        await first.invite(sdp(40000))
        await until(lambda: handler.log == [STARTED])
        caller.call_id, caller.tag, caller.to_tag = first.call_id, first.tag, first.to_tag
        await caller.connect()
        await caller.answer(caller.send("OPTIONS", cseq=2), "OPTIONS")
        await caller.disconnect(0)
        first.reply(await first.request("OPTIONS"), "481 Gone")
        first.reply(await first.request("BYE"), "481 Gone")
        await until(lambda: handler.log[-1] == ("end", "timeout"))
        for peer in (first, caller):
            peer.close()


BODIES = {
    "xml": metadata(),
    "legacy type": metadata(kind=""),
    "multipart": mixed(metadata()),
    "base64": Body("application/rs-metadata+xml", base64.encodebytes(metadata().text.encode()).decode()),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("answered", [True, False])
async def test_metadata_alone_in_a_reinvite(name: str, answered: bool) -> None:
    """It is taken over, and the 200 offers what is agreed, as for any re-INVITE without an offer."""
    body = BODIES[name]
    async with called(*REQUIRE) as (handler, _, caller, _):
        number = caller.send("INVITE", body.text, f"Content-Type: {body.content_type}")
        answer = await caller.answer(number)
        assert answer.start_line == "SIP/2.0 200 OK" and "m=audio" in answer.body
        caller.send("ACK", sdp(40000, version=2) if answered else "", cseq=number)
        number = caller.send("UPDATE", body.text, f"Content-Type: {body.content_type}")
        assert (await caller.answer(number, "UPDATE")).start_line == "SIP/2.0 200 OK"
        await until(lambda: handler.log[1:] == [("metadata",)] * 2)
        (recording,) = (each.recording for each in handler.calls)
        assert recording is not None and [each.name for each in recording.speakers("2", 1)] == ["Ann"]
        del recording
        assert await hung_up(handler, caller) == 1


async def test_what_is_neither_is_refused() -> None:
    async with called(*REQUIRE) as (handler, _, caller, _):
        for method in ("INVITE", "UPDATE"):
            number = caller.send(method, "hello", "Content-Type: text/plain")
            assert (await caller.answer(number, method)).start_line.startswith("SIP/2.0 415 ")
            if method == "INVITE":
                caller.send("ACK", cseq=number)
        assert await hung_up(handler, caller) == 1
