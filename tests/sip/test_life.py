"""The life of a call: what RFC 3261 and its companions allow to happen between an INVITE and the last BYE."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import closing

import pytest

from lab.sip.endpoint import CODES, Recorder, played, until, worker
from lab.sip.rtp_sender import RtpSender
from lab.sip.scenes import RINGS_S, STARTED, media, pick_up, scene
from lab.sip.sip_peer import SipPeer, sdp
from sip.pjsip import call_control, stack

HOLDS = [
    # name, lines of the stream, address, lines of the session → our answer (RFC 3264 section 6.1), and whether it holds
    ("sendonly", ["a=sendonly"], "127.0.0.1", [], "recvonly", True),
    ("inactive", ["a=inactive"], "127.0.0.1", [], "inactive", True),
    ("null address", [], "0.0.0.0", [], "recvonly", True),
    ("null address, inactive", ["a=inactive"], "0.0.0.0", [], "inactive", True),
    ("null address, sendonly", ["a=sendonly"], "0.0.0.0", [], "recvonly", True),
    ("null address of the stream", ["c=IN IP4 0.0.0.0"], "127.0.0.1", [], "recvonly", True),
    ("sendonly of the session", [], "127.0.0.1", ["a=sendonly"], "recvonly", True),
    ("inactive of the session", [], "127.0.0.1", ["a=inactive"], "inactive", True),
    ("the stream's word against the session's", ["a=sendrecv"], "127.0.0.1", ["a=inactive"], "sendrecv", False),
    ("recvonly", ["a=recvonly"], "127.0.0.1", [], "sendonly", False),
]


@pytest.mark.parametrize("back", [["a=sendrecv"], []], ids=["sendrecv", "nothing"])
async def test_every_spelling_of_hold_and_the_way_back(back: list[str]) -> None:
    async with scene() as (handler, _, (caller,)):
        await caller.invite(sdp(40000))
        expected = [STARTED]
        for number, (name, lines, address, session, answer, held) in enumerate(HOLDS):
            body = sdp(40000, *lines, address=address, session=session, version=2 + 2 * number)
            assert media(await caller.invite(body))[1] == answer, name
            if answer != "sendrecv":
                expected.append(("media", "PCMU", answer, "held" if held else "live"))
            assert media(await caller.invite(sdp(40000, *back, version=3 + 2 * number)))[1] == "sendrecv", name
            if answer != "sendrecv":
                expected.append(("media", "PCMU", "sendrecv", "live"))
        await caller.bye()
        await until(lambda: handler.log[-1] == ("end", "hangup"))
        assert handler.log[:-1] == expected


async def test_a_call_may_begin_on_hold() -> None:
    async with scene() as (handler, _, (caller,)):
        assert media(await caller.invite(sdp(40000, "a=sendonly")))[1] == "recvonly"
        assert media(await caller.invite(sdp(40000, version=2)))[1] == "sendrecv"
        await caller.bye()
    assert handler.log[:2] == [("call", "PCMU", "recvonly"), ("media", "PCMU", "sendrecv", "live")]


async def test_a_call_moves_to_another_port_codec_and_source() -> None:
    """As after a transfer by the PBX: no packet of either source is lost, and none comes twice."""
    first, second = RtpSender(), RtpSender()
    async with scene() as (handler, endpoint, (caller,)):
        port, _ = media(await caller.invite(sdp(first.port)))
        await first.talk(CODES[:1600], port)
        moved = await caller.invite(sdp(second.port, formats="8 101", version=2))
        assert "RTP/AVP 8 101" in moved.body and media(moved)[0] == port
        await second.talk(CODES[1600:], port, payload_type=8)
        (packets,) = handler.audio.values()
        await until(lambda: played(packets) == CODES)
        assert [packet[1] & 0x7F for packet in packets] == [0] * 10 + [8] * 15
        assert packets[0][8:12] != packets[-1][8:12], "another SSRC"
        await until(lambda: len(second.take()) > 0)
        assert endpoint.rtp.wrong_source == 0
        await caller.bye()
    assert ("media", "PCMA", "sendrecv", "live") in handler.log
    first.close()
    second.close()


async def test_a_reinvite_without_an_offer_is_offered_what_is_in_use() -> None:
    async with scene() as (handler, _, (caller,)):
        port, _ = media(await caller.invite(sdp(40000)))
        cseq = caller.send("INVITE")
        offered = await caller.answer(cseq)
        assert "RTP/AVP 0 9 8 111 101 100" in offered.body and media(offered) == (port, "sendrecv")
        caller.send("ACK", sdp(40002, formats="8 101", version=2), cseq=cseq)
        await until(lambda: handler.log[-1] == ("media", "PCMA", "sendrecv", "live"))
        cseq = caller.send("INVITE")
        assert "RTP/AVP 8 " in (await caller.answer(cseq)).body
        caller.send("ACK", sdp(40002, "a=sendonly", formats="8 101", version=3), cseq=cseq)
        await until(lambda: handler.log[-1] == ("media", "PCMA", "recvonly", "held"))
        await caller.bye()


async def test_an_answer_in_the_ack_that_takes_opus() -> None:
    async with scene() as (handler, _, (caller,)):
        cseq = caller.send("INVITE")
        await caller.answer(cseq, status=200)
        lines = ("a=rtpmap:111 opus/48000/2", "a=rtpmap:100 telephone-event/48000")
        caller.send("ACK", sdp(40002, *lines, formats="111 100"), cseq=cseq)
        await until(lambda: handler.log == [("call", "opus", "sendrecv")])
        stream = handler.calls[0].streams[0]
        assert (stream.payload_type, stream.telephone_event, stream.event_clock_hz) == (111, 100, 48000)
        del stream
        held = await caller.invite(sdp(40002, "a=sendonly", *lines, formats="111 100", version=2))
        assert media(held)[1] == "recvonly" and "a=rtpmap:111 opus/48000/2" in held.body
        await caller.bye()


async def test_a_reinvite_before_the_last_one_is_settled() -> None:
    """500 with Retry-After to who overtakes itself (RFC 3261 section 14.2), and the first one stands."""
    async with scene() as (handler, _, (caller,)):
        await caller.invite(sdp(40000))
        first = caller.send("INVITE", sdp(40000, "a=sendonly", version=2))
        await caller.answer(first, status=200)
        second = caller.send("INVITE", sdp(40000, "a=inactive", version=3))
        refused = await caller.answer(second)
        caller.send("ACK", cseq=second)
        assert refused.start_line.startswith("SIP/2.0 500 ") and 0 <= int(refused.header("retry-after")) <= 10
        caller.send("ACK", cseq=first)
        assert media(await caller.invite(sdp(40000, version=4)))[1] == "sendrecv"
        await caller.bye()
    assert handler.log == [
        STARTED, ("media", "PCMU", "recvonly", "held"), ("media", "PCMU", "sendrecv", "live"), ("end", "hangup"),
    ]  # fmt: skip


async def test_reinvites_in_one_burst() -> None:
    """Several are answered before the loop comes round: each answer is taken for what it is."""
    async with scene() as (handler, _, (caller,)):
        await caller.invite(sdp(40000))
        numbers = []
        for version, lines in enumerate((["a=sendonly"], [], ["a=inactive"], []), 2):
            numbers.append(caller.send("INVITE", sdp(40000, *lines, version=version)))
            caller.send("ACK", cseq=numbers[-1])
        answers = [media(await caller.answer(number))[1] for number in numbers]
        assert answers == ["recvonly", "sendrecv", "inactive", "sendrecv"]
        await caller.bye()
    assert handler.log == [
        STARTED, ("media", "PCMU", "recvonly", "held"), ("media", "PCMU", "sendrecv", "live"),
        ("media", "PCMU", "inactive", "held"), ("media", "PCMU", "sendrecv", "live"), ("end", "hangup"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "answered"),
    [
        (["Session-Expires: 90;refresher=uac", "Supported: timer"], ("90;refresher=uac", "timer")),
        (["Session-Expires: 90;refresher=uas", "Supported: timer"], ("90;refresher=uas", "")),
        (["Session-Expires: 1800", "Require: timer"], ("1800;refresher=uas", "")),
        (["x: 120;refresher=uac", "k: timer"], ("120;refresher=uac", "timer")),
        # A proxy asks, the caller knows nothing of timers: it is for the worker to refresh (RFC 4028 section 9).
        (["Session-Expires: 90"], ("90;refresher=uas", "")),
        (["Supported: timer"], ("", "")),
    ],
)
async def test_session_timers_are_agreed_upon(headers: list[str], answered: tuple[str, str]) -> None:
    async with scene() as (_, _, (caller,)):
        message = await caller.invite(sdp(40000), *headers)
        expires, required = message.header("session-expires"), message.header("require")
        if headers == ["Supported: timer"]:
            assert expires in ("", "1800;refresher=uac")
        else:
            assert (expires, required) == answered
        await caller.bye()


async def test_a_session_interval_that_is_too_short() -> None:
    async with scene() as (handler, _, (caller,)):
        cseq = caller.send("INVITE", sdp(40000), "Session-Expires: 60", "Supported: timer")
        refused = await caller.answer(cseq)
        assert refused.start_line.startswith("SIP/2.0 422 ") and refused.header("min-se") == "90"
        caller.send("ACK", cseq=cseq)
        caller.to_tag = ""
        await caller.invite(sdp(40000), "Session-Expires: 90", "Min-SE: 90", "Supported: timer")
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_the_peer_refreshes_by_update_and_by_reinvite() -> None:
    """Neither changes anything but the timer."""
    headers = ("Session-Expires: 90;refresher=uac", "Supported: timer")
    async with scene() as (handler, _, (caller,)):
        await caller.invite(sdp(40000), *headers)
        update = await caller.answer(caller.send("UPDATE", "", *headers), "UPDATE")
        assert update.start_line == "SIP/2.0 200 OK" and update.body == ""
        assert update.header("session-expires") == "90;refresher=uac"
        again = await caller.invite(sdp(40000), *headers)
        assert again.header("session-expires") == "90;refresher=uac"
        with_offer = await caller.answer(caller.send("UPDATE", sdp(40000, "a=sendonly", version=2), *headers), "UPDATE")
        assert media(with_offer)[1] == "recvonly"
        await caller.bye()
    assert handler.log == [STARTED, ("media", "PCMU", "recvonly", "held"), ("end", "hangup")]


# Ringing


async def test_a_call_rings_before_it_is_answered() -> None:
    async with scene(answer_delay_s=RINGS_S) as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000), "Supported: 100rel")
        ringing = await caller.answer(cseq, status=180)
        assert (ringing.body, ringing.header("rseq"), ringing.header("require")) == ("", "", "")
        assert endpoint.calls == 1 and handler.log == [] and endpoint.rtp.sent == 0
        pick_up(endpoint)
        answer = await caller.answer(cseq)
        assert media(answer)[1] == "sendrecv" and caller.statuses(cseq)[:2] == [180, 200]
        caller.send("ACK", cseq=cseq)
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_a_call_without_an_offer_rings_too() -> None:
    async with scene(answer_delay_s=0.2) as (handler, _, (caller,)):
        cseq = caller.send("INVITE")
        assert (await caller.answer(cseq, status=180)).body == ""
        assert media(await caller.answer(cseq))[1] == "sendrecv"
        caller.send("ACK", sdp(40000), cseq=cseq)
        await until(lambda: handler.log == [STARTED])
        await caller.bye()


async def test_a_cancel_while_it_rings() -> None:
    """487, nothing for the handler, and no timer left that would answer."""
    async with scene(answer_delay_s=RINGS_S) as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000), branch="one")
        await caller.answer(cseq, status=180)
        caller.send("CANCEL", cseq=cseq, branch="one", within=False)
        assert (await caller.answer(cseq, "CANCEL")).start_line == "SIP/2.0 200 OK"
        assert (await caller.answer(cseq)).start_line.startswith("SIP/2.0 487 ")
        caller.send("ACK", cseq=cseq, branch="one")
        await until(lambda: endpoint.calls == 0)
        assert (endpoint.counters.cancelled, endpoint.counters.failed) == (1, 0)
        assert not endpoint.control.ringing
    assert handler.log == []


async def test_a_bye_while_it_rings() -> None:
    """A caller may end an early dialog with BYE (RFC 3261 section 15)."""
    async with scene(answer_delay_s=RINGS_S) as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000), branch="one")
        await caller.answer(cseq, status=180)
        await caller.bye()
        assert (await caller.answer(cseq)).start_line.startswith("SIP/2.0 487 ")
        caller.send("ACK", cseq=cseq, branch="one")
        await until(lambda: endpoint.calls == 0)
        assert not endpoint.control.ringing
    assert handler.log == []


async def test_a_call_for_which_there_are_not_enough_ports_takes_none() -> None:
    """A recording session of two streams, and one port left."""
    async with scene() as (handler, endpoint, (caller,)):
        with contextlib.ExitStack() as taken:
            for _ in range(len(endpoint.control.ports._free) - 1):
                taken.callback(endpoint.control.ports.close, endpoint.control.ports.open(0.0), 0.0)
            before = endpoint.rtp_sockets
            two = sdp(40000, "a=label:1", "a=sendonly", "m=audio 40002 RTP/AVP 0", "a=label:2", "a=sendonly")
            refused = await caller.answer(caller.send("INVITE", two, "Require: siprec"))
            assert refused.start_line.startswith("SIP/2.0 503 ")
            assert endpoint.rtp_sockets == before and not endpoint.rtp.open_sockets
    assert handler.log == []


async def test_a_drain_while_it_rings() -> None:
    """Those who ring are told at once to try elsewhere; those who talk go on."""
    async with scene(peers=3, answer_delay_s=RINGS_S) as (handler, endpoint, (talking, ringing, late)):
        cseq = talking.send("INVITE", sdp(40000))
        await talking.answer(cseq, status=180)
        pick_up(endpoint)
        await talking.answer(cseq, status=200)
        talking.send("ACK", cseq=cseq)
        cseq = ringing.send("INVITE", sdp(40000), branch="one")
        await ringing.answer(cseq, status=180)
        endpoint.refuse_new()
        refused = await ringing.answer(cseq)
        assert refused.start_line.startswith("SIP/2.0 503 ") and refused.header("retry-after") == "10"
        ringing.send("ACK", cseq=cseq, branch="one")
        refused = await late.answer(late.send("INVITE", sdp(40000)))
        assert refused.start_line.startswith("SIP/2.0 503 ") and refused.header("retry-after") == "10"
        assert endpoint.counters.refused == {503: 2}
        await talking.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_ringing_takes_a_place() -> None:
    async with scene(peers=2, answer_delay_s=RINGS_S, max_calls=1) as (_, endpoint, (first, second)):
        cseq = first.send("INVITE", sdp(40000), branch="one")
        await first.answer(cseq, status=180)
        assert (await second.answer(second.send("INVITE", sdp(40000)))).start_line.startswith("SIP/2.0 486 ")
        first.send("CANCEL", cseq=cseq, branch="one", within=False)
        await first.answer(cseq)
        first.send("ACK", cseq=cseq, branch="one")
        await until(lambda: endpoint.calls == 0)


async def test_a_recording_client_does_not_wait() -> None:
    """What is said meanwhile would be missing."""
    async with scene(answer_delay_s=RINGS_S) as (_, endpoint, (caller,)):
        await caller.invite(sdp(40000, "a=sendonly", "a=label:1"), "Require: siprec")
        assert caller.statuses(1) == [200] and endpoint.counters.recordings == 1
        await caller.bye()


async def test_reliable_ringing() -> None:
    """RFC 3262: the 180 comes again until its PRACK does; what acknowledges nothing is refused."""
    async with scene(answer_delay_s=RINGS_S) as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000), "Require: 100rel")
        ringing = await caller.answer(cseq, status=180)
        assert ringing.header("require") == "100rel"
        number = int(ringing.header("rseq"))
        await until(lambda: caller.statuses(cseq)[:3] == [180, 180, 180])
        wrong = await caller.answer(caller.send("PRACK", "", f"RAck: {number + 7} {cseq} INVITE"), "PRACK")
        assert wrong.start_line.startswith("SIP/2.0 481 ")
        right = await caller.answer(caller.send("PRACK", "", f"RAck: {number} {cseq} INVITE"), "PRACK")
        assert right.start_line == "SIP/2.0 200 OK"
        pick_up(endpoint)
        assert media(await caller.answer(cseq))[1] == "sendrecv"
        caller.send("ACK", cseq=cseq)
        await until(lambda: handler.log == [STARTED])
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_a_late_prack() -> None:
    """The 200 does not wait for it: RFC 3262 section 3 asks that of a 180 with a description only."""
    async with scene(answer_delay_s=0.2) as (handler, _, (caller,)):
        cseq = caller.send("INVITE", sdp(40000), "Require: 100rel")
        number = (await caller.answer(cseq, status=180)).header("rseq")
        assert media(await caller.answer(cseq, status=200))[1] == "sendrecv"
        late = await caller.answer(caller.send("PRACK", "", f"RAck: {number} {cseq} INVITE"), "PRACK")
        assert late.start_line == "SIP/2.0 200 OK"
        caller.send("ACK", cseq=cseq)
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_a_call_without_an_offer_does_not_ring_reliably() -> None:
    """The first reliable answer must have our offer (RFC 3261 section 13.2.1): so it is the 200."""
    async with scene(answer_delay_s=RINGS_S) as (handler, _, (caller,)):
        cseq = caller.send("INVITE", "", "Require: 100rel")
        assert media(await caller.answer(cseq))[1] == "sendrecv" and caller.statuses(cseq) == [200]
        caller.send("ACK", sdp(40000), cseq=cseq)
        await until(lambda: handler.log == [STARTED])
        await caller.bye()


async def test_requests_while_it_rings() -> None:
    """A new offer before the first one is answered is refused (RFC 3311 section 5.2), and nothing gets in the way."""
    async with scene(answer_delay_s=RINGS_S) as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000))
        await caller.answer(cseq, status=180)
        for method, body, status in (
            ("UPDATE", sdp(40002, "a=inactive", version=2), 500), ("UPDATE", "", 200), ("OPTIONS", "", 200),
            ("INVITE", sdp(40002, version=2), 500),
        ):  # fmt: skip
            number = caller.send(method, body)
            assert (await caller.answer(number, method)).start_line.startswith(f"SIP/2.0 {status} "), method
            if method == "INVITE":
                caller.send("ACK", cseq=number)
        digit = await caller.answer(caller.send("INFO", "5", "Content-Type: application/dtmf"), "INFO")
        assert digit.start_line == "SIP/2.0 200 OK"
        pick_up(endpoint)
        assert media(await caller.answer(cseq))[1] == "sendrecv"
        caller.send("ACK", cseq=cseq)
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_reliable_ringing_that_nobody_acknowledges() -> None:
    """The call fails after 64*T1 (RFC 3262 section 3), and nobody has heard of it."""
    async with scene(answer_delay_s=RINGS_S) as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000), "Require: 100rel", branch="one")
        refused = await caller.answer(cseq)
        assert 500 <= int(refused.start_line.split()[1]) < 600
        caller.send("ACK", cseq=cseq, branch="one")
        await until(lambda: endpoint.calls == 0)
        assert not endpoint.control.ringing
    assert handler.log == []


async def test_100rel_without_ringing() -> None:
    async with scene(peers=2) as (handler, _, callers):
        for caller, header in zip(callers, ("Supported: 100rel", "Require: 100rel"), strict=True):
            await caller.invite(sdp(40000), header)
            assert caller.statuses(1) == [200]
            wrong = await caller.answer(caller.send("PRACK", "", "RAck: 1 1 INVITE"), "PRACK")
            assert wrong.start_line.startswith("SIP/2.0 481 ")
            await caller.bye()


# Forks


async def test_a_forked_invite_that_arrives_twice() -> None:
    """The same request by two ways is one call: 482 for the second (RFC 3261 section 8.2.2.2), for another user too."""
    async with scene(answer_delay_s=0.2) as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000), branch="one")
        await caller.answer(cseq, status=180)

        async def fork(branch: str, uri: str = "") -> None:
            caller.send("INVITE", sdp(40000), branch=branch, cseq=cseq, within=False, uri=uri)
            await until(lambda: any(branch in m.header("via") and " 482 " in m.start_line for m in caller.heard))
            caller.send("ACK", branch=branch, cseq=cseq, within=False)

        await fork("two")
        await fork("three", caller.uri.replace("1000", "1001"))
        await caller.answer(cseq, status=200)
        caller.send("ACK", cseq=cseq)
        await fork("four")
        assert endpoint.calls == endpoint.counters.answered == 1
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_two_calls_of_one_call_id() -> None:
    """Other tags are other dialogs: each ends by itself."""
    async with scene() as (handler, endpoint, (first,)):
        second = SipPeer(endpoint.port, call_id=first.call_id)
        await first.invite(sdp(40000))
        await second.invite(sdp(40002))
        assert endpoint.calls == 2
        await first.bye()
        await until(lambda: endpoint.calls == 1)
        await second.bye()
        second.close()
    assert handler.log == [STARTED, STARTED, ("end", "hangup"), ("end", "hangup")]


async def test_an_invite_that_comes_twice_is_answered_once() -> None:
    """A repetition has the branch of what it repeats."""
    async with scene() as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000), branch="one")
        caller.send("INVITE", sdp(40000), branch="one", cseq=cseq)
        await caller.answer(cseq)
        caller.send("INVITE", sdp(40000), branch="one", cseq=cseq, within=False)
        await until(lambda: len(caller.statuses(cseq)) >= 2)
        caller.send("ACK", cseq=cseq)
        assert set(caller.statuses(cseq)) == {200} and endpoint.counters.invites == 1
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


# CANCEL, ACK and BYE that cross, are lost, or belong to nothing


async def test_a_cancel_that_crosses_the_answer() -> None:
    """It is answered and changes nothing (RFC 3261 section 9.2): the caller, who has a call now, must hang up."""
    async with scene() as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000), branch="one")
        await caller.answer(cseq)
        caller.send("CANCEL", cseq=cseq, branch="one", within=False)
        assert (await caller.answer(cseq, "CANCEL")).start_line == "SIP/2.0 200 OK"
        caller.send("ACK", cseq=cseq)
        await caller.invite(sdp(40000, "a=sendonly", version=2))
        assert set(caller.statuses(cseq)) == {200} and endpoint.calls == 1
        await caller.bye()
        assert endpoint.counters.cancelled == 0
    assert handler.log == [STARTED, ("media", "PCMU", "recvonly", "held"), ("end", "hangup")]


async def test_what_belongs_to_no_call() -> None:
    """481, and the call that there is goes on."""
    async with scene(peers=2) as (handler, endpoint, (caller, other)):
        await caller.invite(sdp(40000))
        for method in ("CANCEL", "BYE", "UPDATE", "INFO", "PRACK", "NOTIFY"):
            for other.to_tag in ("", "nobody"):
                answer = await other.answer(other.send(method), method)
                assert answer.start_line.startswith("SIP/2.0 481 "), (method, other.to_tag)
        assert (await other.answer(other.send("INVITE", sdp(40000)))).start_line.startswith("SIP/2.0 481 ")
        other.to_tag = ""
        for method, status in {"REGISTER": 501, "PUBLISH": 501, "REFER": 501, "DANCE": 501, "SUBSCRIBE": 489}.items():
            answer = await other.answer(other.send(method, "", "Event: presence"), method)
            assert answer.start_line.startswith(f"SIP/2.0 {status} "), method
        # Right but for the tags: to guess a Call-ID is not enough.
        stranger = SipPeer(endpoint.port, call_id=caller.call_id)
        stranger.to_tag = caller.to_tag[:-1] + "x"
        assert (await stranger.answer(stranger.send("BYE"), "BYE")).start_line.startswith("SIP/2.0 481 ")
        stranger.close()
        assert endpoint.calls == 1
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_an_ack_that_is_lost() -> None:
    """The 200 comes again, and one late ACK is enough."""
    async with scene() as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000))
        await until(lambda: caller.statuses(cseq)[:3] == [200, 200, 200])
        await caller.answer(cseq)
        caller.send("ACK", cseq=cseq)
        await caller.invite(sdp(40000, version=2))
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_an_ack_that_never_comes() -> None:
    """After 64*T1 the worker hangs up (RFC 3261 section 13.3.1.4)."""
    async with scene() as (handler, endpoint, (caller,)):
        cseq = caller.send("INVITE", sdp(40000))
        bye = await caller.request("BYE")
        assert len(caller.statuses(cseq)) > 4
        caller.reply(bye, "200 OK")
        await until(lambda: handler.log == [STARTED, ("end", "timeout")])
        assert endpoint.counters.failed == 1


async def test_a_bye_that_comes_twice() -> None:
    """Of the same transaction and of another: 200 while something of the call is there, then 481."""
    async with scene() as (handler, endpoint, (caller,)):
        await caller.invite(sdp(40000))
        cseq = caller.send("BYE", branch="last")
        caller.send("BYE", branch="last", cseq=cseq)
        await until(lambda: caller.statuses(cseq, "BYE") == [200, 200])
        await until(lambda: endpoint.dialogs == 0)
        again = await caller.answer(caller.send("BYE"), "BYE")
        assert again.start_line.startswith("SIP/2.0 481 ")
    assert handler.log == [STARTED, ("end", "hangup")]


async def test_a_bye_of_ours_that_nobody_answers() -> None:
    """The call is over for us at once; PJSIP repeats the BYE for 64*T1 and lets go."""
    async with scene() as (handler, endpoint, (caller,)):
        await caller.invite(sdp(40000))
        handler.calls.pop().hangup()
        await until(lambda: handler.log == [STARTED, ("end", "local")])
        assert endpoint.dialogs == 1 and endpoint.calls == endpoint.rtp_sockets == 0
        await until(lambda: sum(m.start_line.startswith("BYE") for m in caller.heard) > 3)
        await until(lambda: endpoint.dialogs == 0)


async def test_both_sides_hang_up_at_once() -> None:
    async with scene() as (handler, endpoint, (caller,)):
        await caller.invite(sdp(40000))
        handler.calls.pop().hangup()
        bye = await caller.request("BYE")
        await caller.bye()
        caller.reply(bye, "481 Call/Transaction Does Not Exist")
        await until(lambda: len(handler.log) == 2)
        assert handler.log[1] in (("end", "local"), ("end", "hangup"))


async def test_what_is_not_served_in_a_call() -> None:
    """Each has an answer that does not make the peer think that the call is gone (RFC 5057 section 5.1)."""
    async with scene() as (handler, _, (caller,)):
        await caller.invite(sdp(40000))
        for method, headers, body, status in (
            ("OPTIONS", (), "", 200), ("INFO", (), "", 200), ("NOTIFY", ("Event: x",), "", 489),
            ("SUBSCRIBE", ("Event: kpml", "Expires: 7200"), "", 489), ("PUBLISH", (), "", 501), ("DANCE", (), "", 501),
            ("INFO", ("Content-Type: application/media_control+xml",), "<x/>", 415),
            ("INFO", ("Info-Package: y", "Content-Type: a/b"), "z", 469),
        ):  # fmt: skip
            answer = await caller.answer(caller.send(method, body, *headers), method)
            assert answer.start_line.startswith(f"SIP/2.0 {status} "), (method, headers)
        await caller.invite(sdp(40000, version=2))
        await caller.bye()
    assert handler.log == [STARTED, ("end", "hangup")]


# Transfer


async def test_nobody_takes_the_place_of_a_call_by_replaces() -> None:
    """RFC 3891: refused with the call untouched, or 481 where there is no such call; the caller may call by itself."""
    async with scene(peers=2) as (handler, endpoint, (caller, other)):
        await caller.invite(sdp(40000))
        who = f"{caller.call_id};to-tag={caller.to_tag};from-tag={caller.tag}"
        for branch, (text, status) in enumerate(((who, 603), (f"un{who}", 481), (f"{who}x", 481))):
            cseq = other.send("INVITE", sdp(40002), f"Replaces: {text}", "Require: replaces", branch=f"one{branch}")
            assert (await other.answer(cseq)).start_line.startswith(f"SIP/2.0 {status} "), text
            other.send("ACK", cseq=cseq, branch=f"one{branch}")
            other.to_tag = ""
        await other.invite(sdp(40002))
        assert endpoint.calls == 2
        await other.bye()
        await caller.bye()
    assert handler.log == [STARTED, STARTED, ("end", "hangup"), ("end", "hangup")]


# Ports and silence


async def test_a_port_rests_before_it_is_used_again() -> None:
    """Two ports: the third call within ten seconds finds none, though nobody is on the line any more."""
    async with scene(peers=3) as (_, endpoint, callers):
        endpoint.control.ports._free = type(endpoint.control.ports._free)(list(endpoint.control.ports._free)[:2])
        used = []
        for caller in callers[:2]:
            used.append(media(await caller.invite(sdp(40000)))[0])
            await caller.bye()
            await until(lambda: endpoint.calls == 0)
        assert used[0] != used[1]
        refused = await callers[2].answer(callers[2].send("INVITE", sdp(40000)))
        assert refused.start_line.startswith("SIP/2.0 503 ") and refused.header("retry-after") == "10"


async def test_hold_is_no_media_timeout_and_yet_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A held call outlives `media_timeout_s`; that counts anew when the hold is over; a hold is not for ever."""
    async with scene(peers=2, media_timeout_s=1.0) as (handler, endpoint, (caller, other)):
        await caller.invite(sdp(40000))
        await caller.invite(sdp(40000, "a=inactive", version=2))
        await other.invite(sdp(40002))
        bye = await other.request("BYE")
        other.reply(bye, "200 OK")
        assert endpoint.calls == 1, "the one on hold is longer without a packet"
        resumed_s = asyncio.get_running_loop().time()
        await caller.invite(sdp(40000, version=3))
        bye = await caller.request("BYE")
        assert asyncio.get_running_loop().time() - resumed_s >= 1.0
        caller.reply(bye, "200 OK")
        await until(lambda: handler.log[-1] == ("end", "media_timeout"))
        assert endpoint.counters.media_timeouts == 2
        monkeypatch.setattr(call_control, "HOLD_S", 1.5)
        third = SipPeer(endpoint.port)
        await third.invite(sdp(40000, "a=sendonly"))
        third.reply(await third.request("BYE"), "200 OK")
        await until(lambda: endpoint.counters.media_timeouts == 3)
        third.close()


async def test_a_call_in_the_place_of_one_that_has_just_ended() -> None:
    """PJSIP gives the number of a call anew at once, when its turn has come, before we have let go of the first."""
    async with worker(Recorder(), max_calls=2, max_invites_per_s=0) as endpoint:
        first, second = SipPeer(endpoint.port), SipPeer(endpoint.port)
        await first.invite(sdp(40000))
        for _ in range(stack.numbers(2) - 1):
            with closing(SipPeer(endpoint.port)) as other:
                await other.invite(sdp(40002))
                await other.bye()
        first.send("BYE")
        cseq = second.send("INVITE", sdp(40004))  # read together with the BYE
        await second.answer(cseq, status=200)
        second.send("ACK", cseq=cseq)
        await second.answer(second.send("OPTIONS"), "OPTIONS")
        assert not any(message.start_line.startswith("BYE") for message in second.heard) and endpoint.calls == 1
        await second.bye()
        first.close()
        second.close()
