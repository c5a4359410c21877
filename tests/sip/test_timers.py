"""Session timers (RFC 4028) to their ends, on a clock that is moved by hand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from lab.sip.endpoint import Recorder, until, worker
from lab.sip.pjsip_clock import PjsipClock, pjsip_clock
from lab.sip.rtp_sender import RtpSender
from lab.sip.scenes import STARTED, media
from lab.sip.sip_peer import SipPeer, sdp
from sip.pjsip.endpoint import SipEndpoint
from tools.fuzz.sdp_samples import SAMPLES

WORKER_REFRESHES = ("Session-Expires: 90;refresher=uas", "Supported: timer")
PEER_REFRESHES = ("Session-Expires: 90;refresher=uac", "Supported: timer")
UPDATE = "Allow: INVITE, ACK, BYE, CANCEL, UPDATE"


@contextlib.asynccontextmanager
async def scene(**sip: object) -> AsyncIterator[tuple[Recorder, SipEndpoint, SipPeer, PjsipClock]]:
    handler = Recorder()
    with pjsip_clock() as clock:
        async with worker(handler, **sip) as endpoint:
            caller = SipPeer(endpoint.port)
            yield handler, endpoint, caller, clock
            caller.close()
            await until(lambda: endpoint.calls == 0)
            clock.forward(64)  # what is left of transactions


async def forward(caller: SipPeer, clock: PjsipClock, seconds: float) -> None:
    """When everything that the caller has sent so far has been read: PJSIP looks at its timers first."""
    await caller.answer(caller.send("OPTIONS"), "OPTIONS")
    clock.forward(seconds)


async def test_the_worker_refreshes_by_update() -> None:
    """At half the interval, again and again; without a description, for nothing has changed."""
    async with scene() as (handler, _, caller, clock):
        await caller.invite(sdp(40000), *WORKER_REFRESHES, UPDATE)
        for _ in range(3):
            await forward(caller, clock, 46)
            refresh = await caller.request("UPDATE")
            assert (refresh.header("session-expires"), refresh.body) == ("90;refresher=uac", "")
            caller.reply(refresh, "200 OK", "", "Session-Expires: 90;refresher=uac", "Require: timer")
            caller.heard.remove(refresh)
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_the_worker_refreshes_by_reinvite() -> None:
    """Who does not know UPDATE is offered what is in use, and whatever it answers, audio goes on."""
    async with scene() as (handler, endpoint, caller, clock):
        port, _ = media(await caller.invite(sdp(40000), *WORKER_REFRESHES))
        for version in (2, 3):
            await forward(caller, clock, 46)
            refresh = await caller.request("INVITE")
            assert media(refresh) == (port, "sendrecv") and refresh.body.splitlines()[5].split()[3] == "0"
            caller.reply(refresh, "200 OK", sdp(40000, version=version), "Session-Expires: 90;refresher=uac")
            await caller.request("ACK")
            caller.heard.clear()
        sent = endpoint.rtp.sent
        await until(lambda: endpoint.rtp.sent > sent)
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_a_reinvite_while_the_worker_refreshes() -> None:
    """Glare: 491 (RFC 3261 section 14.2), and the peer's turn comes when the refresh is settled."""
    async with scene() as (handler, _, caller, clock):
        await caller.invite(sdp(40000), *WORKER_REFRESHES)
        await forward(caller, clock, 46)
        refresh = await caller.request("INVITE")
        cseq = caller.send("INVITE", sdp(40000, "a=sendonly", version=2))
        assert (await caller.answer(cseq)).start_line.startswith("SIP/2.0 491 ")
        caller.send("ACK", cseq=cseq)
        caller.reply(refresh, "200 OK", sdp(40000, version=1), "Session-Expires: 90;refresher=uac")
        await caller.request("ACK")
        assert media(await caller.invite(sdp(40000, "a=sendonly", version=3)))[1] == "recvonly"
        await caller.bye()
    assert handler.log == [STARTED, ("media", "PCMU", "recvonly", "held"), ("end", "hangup")]


async def test_the_peer_says_491_to_a_refresh() -> None:
    """Its own re-INVITE, that was under way, is the refresh then."""
    async with scene() as (handler, endpoint, caller, clock):
        await caller.invite(sdp(40000), *WORKER_REFRESHES)
        await forward(caller, clock, 46)
        refresh = await caller.request("INVITE")
        caller.reply(refresh, "491 Request Pending")
        await caller.request("ACK")
        await caller.invite(sdp(40000, "a=sendonly", version=2), *WORKER_REFRESHES)
        caller.heard.clear()
        await forward(caller, clock, 46)
        refresh = await caller.request("INVITE")
        caller.reply(refresh, "200 OK", sdp(40000, "a=sendonly", version=2), "Session-Expires: 90;refresher=uac")
        await caller.request("ACK")
        await forward(caller, clock, 40)
        await caller.bye()
    assert handler.log == [STARTED, ("media", "PCMU", "recvonly", "held"), ("end", "hangup")]


async def test_the_answer_to_a_refresh_may_move_the_audio() -> None:
    """To another port, on hold and back; and an answer with nothing in it that can be used changes nothing."""
    async with scene() as (handler, endpoint, caller, clock):
        await caller.invite(sdp(40000), *WORKER_REFRESHES)
        moved = RtpSender()
        held, useless = sdp(40000, "a=sendonly", version=3), sdp(40000, formats="3", version=5)
        for answer in (sdp(moved.port, version=2), held, sdp(moved.port, version=4), useless):
            await forward(caller, clock, 46)
            refresh = await caller.request("INVITE")
            caller.reply(refresh, "200 OK", answer, "Session-Expires: 90;refresher=uac")
            await caller.request("ACK")
            caller.heard.clear()
            if answer != held:
                before = len(moved.take())
                await until(lambda: len(moved.take()) > before + 3)  # noqa: B023 - within this turn
        await caller.bye()
        moved.close()
    assert handler.log == [
        STARTED, ("media", "PCMU", "sendrecv", "live"), ("media", "PCMU", "recvonly", "held"),
        ("media", "PCMU", "sendrecv", "live"), ("end", "hangup"),
    ]  # fmt: skip


@pytest.mark.parametrize("status", ["481 Call/Transaction Does Not Exist", "408 Request Timeout"])
async def test_a_refresh_that_finds_no_call(status: str) -> None:
    """The peer has forgotten the call: it is over here too (RFC 4028 section 10, RFC 3261 section 12.2.1.2)."""
    async with scene() as (handler, _, caller, clock):
        await caller.invite(sdp(40000), *WORKER_REFRESHES, UPDATE)
        await forward(caller, clock, 46)
        caller.reply(await caller.request("UPDATE"), status)
        await until(lambda: len(handler.log) == 2)
        caller.reply(await caller.request("BYE"), "481 Call/Transaction Does Not Exist")
    assert handler.log == [STARTED, ("end", "timeout" if status.startswith("408") else "failed")]


async def test_a_refresh_that_nobody_answers() -> None:
    """A peer that is gone without a BYE: found at the next refresh, on hold as well."""
    async with scene() as (handler, endpoint, caller, clock):
        await caller.invite(sdp(40000, "a=inactive"), *WORKER_REFRESHES, UPDATE)
        await forward(caller, clock, 46)
        await caller.request("UPDATE")
        clock.forward(33)
        await caller.request("BYE")
        await until(lambda: handler.log[-1] == ("end", "timeout"))
        assert endpoint.rtp_sockets == 0 and endpoint.dialogs == 1, "nothing of ours waits for an answer to the BYE"
        await until(lambda: sum(m.start_line.startswith("BYE") for m in caller.heard) > 2)


@pytest.mark.parametrize("held", [False, True])
async def test_a_peer_that_does_not_refresh(held: bool) -> None:
    """The worker hangs up before the interval is over (RFC 4028 section 10)."""
    async with scene() as (handler, endpoint, caller, clock):
        await caller.invite(sdp(40000, *["a=inactive"] * held), *PEER_REFRESHES)
        await forward(caller, clock, 50)
        await caller.invite(sdp(40000, *["a=inactive"] * held), *PEER_REFRESHES)
        await forward(caller, clock, 50)
        await forward(caller, clock, 0)
        assert endpoint.calls == 1
        await forward(caller, clock, 11)
        bye = await caller.request("BYE")
        caller.reply(bye, "200 OK")
        await until(lambda: handler.log[-1][0] == "end")
    assert handler.log[-1] == ("end", "timeout")


async def test_whatever_comes_as_the_answer_to_a_refresh() -> None:
    """As many calls, each of which answers with another description: the worker lives, and all of them end."""
    samples = SAMPLES[::6]
    async with scene(max_calls=len(samples), max_invites_per_s=0) as (_, endpoint, _, clock):
        callers = [SipPeer(endpoint.port) for _ in samples]
        for caller in callers:
            await caller.invite(sdp(40000), *WORKER_REFRESHES)
        await forward(callers[-1], clock, 46)
        for caller, sample in zip(callers, samples, strict=True):
            kind = f"Content-Type: {sample.content_type}"
            refresh = await caller.request("INVITE")
            caller.reply(refresh, "200 OK", sample.body, "Session-Expires: 90;refresher=uas", kind)
            await caller.request("ACK")
            caller.send("BYE")
        await until(lambda: endpoint.calls == 0)
        for caller in callers:
            caller.close()
