"""Requests within a call: only its own dialog's are taken (RFC 3261 section 12.2.2), and each of them once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lab.sip.endpoint import until
from lab.sip.scenes import STARTED, scene
from lab.sip.sip_peer import SipPeer, sdp
from sip.protocol.message import tag_of

DIGIT = ("5", "Content-Type: application/dtmf")

OWN = ("INFO", "OPTIONS", "NOTIFY", "SUBSCRIBE", "PUBLISH", "DANCE", "PRACK")
"""Methods that are answered before PJSIP sees them."""

PJSIPS = ("BYE", "UPDATE", "REFER", "MESSAGE", "INVITE")


async def test_only_the_dialog_itself_is_heard() -> None:
    """Whoever knows the Call-ID, and one tag, is answered 481, and nothing it sends changes the call."""
    async with scene() as (handler, endpoint, (caller,)):
        await caller.invite(sdp(40000))
        strangers = {
            "another From tag": (caller.call_id, "", caller.to_tag),
            "another To tag": (caller.call_id, caller.tag, caller.to_tag[:-1] + "x"),
            "another Call-ID": ("", caller.tag, caller.to_tag),
        }
        for name, (call_id, tag, to_tag) in strangers.items():
            stranger = SipPeer(endpoint.port, call_id=call_id, tag=tag)
            stranger.to_tag = to_tag
            for method in OWN + PJSIPS:
                body = DIGIT if method == "INFO" else (sdp(40002, version=2),) if method == "INVITE" else ("",)
                cseq = stranger.send(method, *body, cseq=5000)
                answer = await stranger.answer(cseq, method)
                assert answer.start_line.startswith("SIP/2.0 481 "), (name, method, answer.start_line)
            stranger.close()
        # The caller's own CSeq is lower than the strangers' was.
        answer = await caller.answer(caller.send("INFO", *DIGIT), "INFO")
        assert answer.start_line == "SIP/2.0 200 OK"
        await until(lambda: len(handler.log) == 2)
        await caller.bye()
    assert handler.log == [STARTED, ("dtmf", "5", "0"), ("end", "hangup")]


async def test_two_dialogs_of_one_call_id_have_their_own_digits() -> None:
    async with scene() as (handler, endpoint, (first,)):
        second = SipPeer(endpoint.port, call_id=first.call_id)
        for peer in (first, second):
            await peer.invite(sdp(40000))
        heard: list[tuple[str, str]] = []
        handler.on_dtmf = lambda call, digit, duration_ms: heard.append((call.remote_tag, digit))  # type: ignore[method-assign]
        for peer, digit in ((second, "2"), (first, "1"), (second, "#")):
            number = peer.send("INFO", digit, "Content-Type: application/dtmf")
            assert (await peer.answer(number, "INFO")).start_line == "SIP/2.0 200 OK"
        await until(lambda: len(heard) == 3)
        assert heard == [(second.tag, "2"), (first.tag, "1"), (second.tag, "#")]
        for peer in (first, second):
            await peer.bye()
        second.close()


async def test_each_info_is_taken_once_and_in_order() -> None:
    """A repetition is answered as before, also after later ones; what comes late is out of order: 500."""
    async with scene() as (handler, _, (caller,)):
        await caller.invite(sdp(40000))

        async def info(cseq: int, branch: str, body: str = "5") -> str:
            caller.heard.clear()
            caller.send("INFO", body, "Content-Type: application/dtmf", cseq=cseq, branch=branch)
            return (await caller.answer(cseq, "INFO")).start_line[8:11]

        given_ = [(10, "a"), (12, "b"), (12, "b"), (10, "a"), (11, "late"), (13, "c")]
        assert [await info(*each) for each in given_] == ["200", "200", "200", "200", "500", "200"]
        assert await info(14, "odd", "no digit") == await info(14, "odd", "no digit") == "415"
        await until(lambda: len(handler.log) == 4)
        for _ in range(20):
            next(caller.cseq)
        await caller.bye()
    assert handler.log == [STARTED, *[("dtmf", "5", "0")] * 3, ("end", "hangup")]


@given(st.text())
def test_any_header_has_a_tag_or_none(text: str) -> None:
    assert not set(tag_of(text)) & set(" \t\r\n;,")
    assert tag_of(f"<sip:x@y>;tag=own;{text}") == "own"
