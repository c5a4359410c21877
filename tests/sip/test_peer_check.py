"""Peers that die leave no calls behind; peers that only say nothing keep theirs."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from lab.patience import seconds
from lab.sip.endpoint import Recorder, short_memory, until, worker
from lab.sip.rtp_sender import RtpSender
from lab.sip.scenes import STARTED, longest_pause_s, media, scene
from lab.sip.sip_peer import SipPeer, sdp
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Expect, Pause, Send, offer, scenario
from sip.pjsip import call_control
from sip.protocol import liveness

CHECK_S = 0.4

CALLS = 30
"""The ports of twice as many are free: each rests for ten seconds after its call."""

INVITE = Send("INVITE", offer("m=audio 30000 RTP/AVP 0\na=rtpmap:0 PCMU/8000"))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes 16 s takes 4 s, and silence is looked for twenty times a second."""
    monkeypatch.setattr(call_control, "_SWEEP_S", 0.05)
    monkeypatch.setattr(liveness, "ANSWER_S", seconds(4))
    monkeypatch.setattr(liveness, "REFUSED_S", 0.3)
    monkeypatch.setattr(liveness, "DOUBT_S", 0.2)


def expected_statuses(peer: SipPeer, *statuses: str) -> asyncio.Task[None]:
    """Answers the OPTIONS that come, each with the next of these."""

    async def answer() -> None:
        for status in statuses:
            question = await peer.request("OPTIONS")
            peer.heard.remove(question)
            peer.reply(question, status)

    return asyncio.create_task(answer())


ALIVE = ("200 OK", "405 Method Not Allowed", "501 Not Implemented", "500 Unhandled", "404 Not Found", "401 Who")


@pytest.mark.usefixtures("hasty")
async def test_a_peer_that_answers_keeps_its_call() -> None:
    """Whatever it answers, as long as it knows the call: on hold, as a recording client, or with nothing to say."""
    silent, held, recorder = ((), ()), (("a=sendonly",), ()), (("a=inactive", "a=label:1"), ("Require: siprec",))
    async with scene(peers=3, peer_check_s=0.2) as (handler, endpoint, callers):
        for caller, (lines, headers) in zip(callers, (silent, held, recorder), strict=True):
            await caller.invite(sdp(40000, *lines), *headers)
        await asyncio.gather(*(expected_statuses(caller, *ALIVE) for caller in callers))
        assert endpoint.calls == 3
        assert endpoint.counters.peers_asked >= 3 * len(ALIVE) and endpoint.counters.peers_lost == 0
        for caller in callers:
            await caller.bye()
    assert [entry for entry in handler.log if entry[0] == "end"] == [("end", "hangup")] * 3


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("status", ["481 Call/Transaction Does Not Exist", "408 Request Timeout", ""])
async def test_a_peer_without_the_call_loses_it(status: str) -> None:
    """It has forgotten the call, a proxy on the way cannot reach it, or it says nothing at all."""
    async with scene(peer_check_s=0.2) as (handler, endpoint, (caller,)):
        await caller.invite(sdp(40000, "a=sendonly"))
        question = await caller.request("OPTIONS")
        if status:
            caller.reply(question, status)
        bye = await caller.request("BYE")
        caller.reply(bye, "481 Call/Transaction Does Not Exist")
        await until(lambda: handler.log[-1] == ("end", "timeout"))
        assert (endpoint.counters.peers_lost, endpoint.counters.failed) == (1, 1)


@pytest.mark.usefixtures("hasty")
async def test_rtp_says_that_a_peer_lives() -> None:
    """Who is heard is not asked; who is heard again after a question that was lost keeps the call."""
    sender = RtpSender()
    async with scene(peer_check_s=CHECK_S) as (handler, endpoint, (caller,)):
        port, _ = media(await caller.invite(sdp(sender.port)))
        asked, pause_s = 0, CHECK_S
        while pause_s >= CHECK_S / 2:  # then it was silent
            asked = endpoint.counters.peers_asked
            pause_s = await longest_pause_s(sender.talk(b"\xff" * 6400, port))
        assert endpoint.counters.peers_asked == asked
        await caller.request("OPTIONS")
        while endpoint.transactions:  # until PJSIP gives its own up, which must not end the call
            await sender.talk(b"\xff" * 1600, port)
        assert (endpoint.calls, endpoint.counters.peers_lost) == (1, 0)
        await caller.bye()
    sender.close()
    assert handler.log == [STARTED, ("end", "hangup")]


@pytest.mark.usefixtures("hasty")
async def test_a_peer_that_takes_no_rtp_any_more_is_asked_at_once() -> None:
    """Its ports are closed, as of a process that was killed: ICMP says so, long before `sip.peer_check_s`."""
    sender = RtpSender()
    async with scene() as (handler, endpoint, (caller,)):
        port, _ = media(await caller.invite(sdp(sender.port)))
        await sender.talk(b"\xff" * 1600, port)
        await until(lambda: endpoint.rtp.packets == 10)
        sender.close()
        await caller.request("OPTIONS", timeout_s=5)
        caller.reply(await caller.request("BYE", timeout_s=5), "481 Call/Transaction Does Not Exist")
        await until(lambda: handler.log[-1] == ("end", "timeout"))
        assert endpoint.rtp.send_errors <= 1


async def test_audio_is_heard_while_icmp_errors_come() -> None:
    """Its source sends and never listens: each packet to it brings an error, and none of its own is lost."""
    deaf = RtpSender()
    async with scene() as (handler, endpoint, (caller,)):
        port, _ = media(await caller.invite(sdp(40000)))  # nobody is there
        await deaf.talk(b"\xff" * 8000, port)
        await until(lambda: endpoint.rtp.packets == 50)
        await caller.bye()
    deaf.close()


async def test_a_session_timer_is_asked_for_where_the_peer_can_refresh() -> None:
    async with scene(peers=2) as (_, _, (able, unable)):
        answer = await able.invite(sdp(40000), "Supported: 100rel, timer")
        assert (answer.header("session-expires"), answer.header("require")) == ("1800;refresher=uac", "timer")
        refreshed = await able.answer(able.send("UPDATE", "", "Supported: timer"), "UPDATE")
        assert refreshed.header("session-expires") == "1800;refresher=uac"
        answer = await unable.invite(sdp(40000))
        assert (answer.header("session-expires"), answer.header("require")) == ("", "")
        for peer in (able, unable):
            await peer.bye()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_nothing_stays_of_a_peer_that_is_killed(tmp_path: Path, transport: str) -> None:
    """SIPp with calls of which none sends RTP. They are kept as long as it lives, and block nobody afterwards."""
    handler, sipp = Recorder(), Sipp(tmp_path)
    # By TCP it is found by the end of the connection alone.
    check_s = seconds(1.0) if transport == "udp" else 30.0
    with short_memory():
        async with worker(handler, max_calls=CALLS, max_invites_per_s=0.0, peer_check_s=check_s) as endpoint:
            target, how = f"127.0.0.1:{endpoint.port}", {"transport": "u1" if transport == "udp" else "t1"}
            held = scenario(INVITE, *[Expect("OPTIONS")] * 50, Expect("BYE"))
            dying = sipp.start(held, target, calls=CALLS, at_once=CALLS, rate=200, timeout_s=60, **how)
            await until(lambda: handler.log.count(STARTED) == CALLS)
            if transport == "udp":
                await until(lambda: endpoint.counters.peers_asked >= 2 * CALLS)
            assert endpoint.calls == CALLS and endpoint.counters.peers_lost == 0
            await sipp.run(scenario(Send("INVITE", INVITE.body, answer=486)), target, **how)
            sipp.processes[0].kill()
            await until(lambda: endpoint.calls == 0)
            assert endpoint.counters.peers_lost == CALLS
            again = scenario(INVITE, Pause(200), Send("BYE"))
            await sipp.run(again, target, calls=CALLS, at_once=CALLS, rate=200, timeout_s=60, **how)
            with contextlib.suppress(AssertionError):  # it was killed
                await dying
    ends = [entry[1] for entry in handler.log if entry[0] == "end"]
    assert ends == ["timeout"] * CALLS + ["hangup"] * CALLS


@pytest.mark.usefixtures("hasty")
async def test_a_peer_that_cannot_be_reached_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a NAT, without a proxy: its calls are left to its session timer and `sip.media_timeout_s`."""
    monkeypatch.setattr("sip.pjsip.peer_checks.is_behind_nat", lambda contact, source: True)

    async with scene(peers=2, peer_check_s=0.1) as (_, endpoint, (direct, proxied)):
        await direct.invite(sdp(40000))
        await proxied.invite(sdp(40000), f"Record-Route: <sip:127.0.0.1:{proxied.port};lr>")
        await proxied.request("OPTIONS")  # when the other has been silent for longer
        assert endpoint.counters.peers_asked == 1
        assert not any(message.start_line.startswith("OPTIONS") for message in direct.heard)
        for caller in (direct, proxied):
            await caller.bye()
