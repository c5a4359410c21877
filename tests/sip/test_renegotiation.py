"""What a call offers when its peer asks for an offer: what was agreed (RFC 3264 section 8, RFC 6337)."""

from __future__ import annotations

import base64
import re

import pytest

from lab.sip.crypto_lines import INLINE, LONG, SHORT
from lab.sip.endpoint import until
from lab.sip.rtp_sender import RtpSender
from lab.sip.scenes import STARTED, scene
from lab.sip.sip_peer import SipPeer, sdp
from lab.sip.siprec import PEOPLE, metadata
from sip.protocol.message import SipMessage
from sip.protocol.sdp import SessionDescription
from sip.protocol.srtp import KEY_BYTES, Crypto, SrtpContext

DIGITS_AT_96 = "a=rtpmap:96 telephone-event/8000"


def description(*lines: str, version: int = 1) -> str:
    head = ["v=0", f"o=- 1 {version} IN IP4 127.0.0.1", "s=-", "c=IN IP4 127.0.0.1", "t=0 0"]
    return "\r\n".join([*head, *lines, ""])


async def ask_for_an_offer(caller: SipPeer) -> tuple[int, SessionDescription]:
    """A re-INVITE without a body → its CSeq, and what the 200 offers."""
    cseq = caller.send("INVITE")
    answer = await caller.answer(cseq, status=200)
    return cseq, SessionDescription.parse(answer.body)


def formats(message: SipMessage) -> tuple[str, ...]:
    return SessionDescription.parse(message.body).media[0].formats


@pytest.mark.parametrize(
    ("number", "rtpmap", "codec"),
    [(0, "PCMU/8000", "0"), (8, "PCMA/8000", "8"), (97, "PCMU/8000", "97"), (120, "opus/48000/2", "120")],
)
async def test_payload_types_stay(number: int, rtpmap: str, codec: str) -> None:
    clock = "48000" if "opus" in rtpmap else "8000"
    lines = (f"a=rtpmap:{number} {rtpmap}", f"a=rtpmap:96 telephone-event/{clock}")
    body = description(f"m=audio 40000 RTP/AVP {number} 96", *lines)
    async with scene() as (handler, _, (caller,)):
        first = await caller.invite(body)
        assert formats(first) == (codec, "96")
        cseq, offered = await ask_for_an_offer(caller)
        (line,) = offered.media
        found = {each.payload_type: (each.encoding, each.clock_hz) for each in line.rtp_formats()}
        assert line.formats[0] == codec and found[96] == ("TELEPHONE-EVENT", int(clock))
        assert len(set(line.formats)) == len(line.formats) == len(found)
        before = SessionDescription.parse(first.body).origin
        assert offered.origin.session_id == before.session_id and int(offered.origin.version) > int(before.version)
        caller.send("ACK", description(f"m=audio 40002 RTP/AVP {number} 96", *lines, version=2), cseq=cseq)
        await until(lambda: handler.calls[0].streams[0].socket._latch.expected == ("127.0.0.1", 40002))
        stream = handler.calls[0].streams[0]
        assert (stream.payload_type, stream.telephone_event, stream.event_clock_hz) == (number, 96, int(clock))
        del stream
        await caller.bye()
    assert handler.log[-1] == ("end", "hangup")


async def test_lines_that_were_refused_stay_refused() -> None:
    """In their places: an answer with fewer lines would be none."""
    lines = ("m=video 40010 RTP/AVP 31", "m=audio 40000 RTP/AVP 0 96", DIGITS_AT_96, "m=audio 40020 RTP/AVP 18")
    async with scene() as (handler, _, (caller,)):
        await caller.invite(description(*lines))
        cseq, offered = await ask_for_an_offer(caller)
        assert [(each.kind, bool(each.port)) for each in offered.media] == [
            ("video", False), ("audio", True), ("audio", False),
        ]  # fmt: skip
        answer = ("m=video 0 RTP/AVP 31", "m=audio 40002 RTP/AVP 0 96", DIGITS_AT_96, "m=audio 0 RTP/AVP 18")
        caller.send("ACK", description(*answer, version=2), cseq=cseq)
        await until(lambda: handler.calls[0].streams[0].socket._latch.expected == ("127.0.0.1", 40002))
        assert handler.calls[0].streams[0].index == 1
        await caller.bye()
    assert handler.log[-1] == ("end", "hangup")


@pytest.mark.parametrize(
    ("lines", "address"),
    [(("a=inactive",), "127.0.0.1"), ((), "0.0.0.0"), (("a=sendonly",), "127.0.0.1"), (("a=inactive",), "0.0.0.0")],
)
async def test_a_hold_in_the_ack(lines: tuple[str, ...], address: str) -> None:
    """As CUCM holds and resumes: each time by a re-INVITE without an offer, which is offered both directions."""
    async with scene() as (handler, _, (caller,)):
        await caller.invite(sdp(40000))
        for version in (2, 4):
            cseq, offered = await ask_for_an_offer(caller)
            assert offered.direction_of(offered.media[0]).value == "sendrecv"
            caller.send("ACK", sdp(40002, *lines, address=address, version=version), cseq=cseq)
            await until(lambda: handler.log[-1][-1] == "held")
            cseq, offered = await ask_for_an_offer(caller)
            assert offered.direction_of(offered.media[0]).value == "sendrecv"
            caller.send("ACK", sdp(40004, version=version + 1), cseq=cseq)
            await until(lambda: handler.log[-1] == ("media", "PCMU", "sendrecv", "live"))
        await caller.bye()
    assert handler.log[-1] == ("end", "hangup")


@pytest.mark.parametrize(
    ("lines", "address", "ours"), [(("a=inactive",), "127.0.0.1", "inactive"), ((), "0.0.0.0", "recvonly")]
)
async def test_a_call_that_begins_held_by_its_ack(lines: tuple[str, ...], address: str, ours: str) -> None:
    async with scene() as (handler, _, (caller,)):
        cseq = caller.send("INVITE")
        await caller.answer(cseq, status=200)
        caller.send("ACK", sdp(40002, *lines, address=address), cseq=cseq)
        await until(lambda: handler.log == [("call", "PCMU", ours)])
        cseq, offered = await ask_for_an_offer(caller)
        assert offered.direction_of(offered.media[0]).value == "sendrecv"
        caller.send("ACK", sdp(40002, version=2), cseq=cseq)
        await until(lambda: handler.log[-1] == ("media", "PCMU", "sendrecv", "live"))
        await caller.bye()
    assert handler.log[-1] == ("end", "hangup")


async def test_an_ack_without_an_answer_changes_nothing() -> None:
    async with scene() as (handler, _, (caller,)):
        await caller.invite(sdp(40000))
        cseq, _ = await ask_for_an_offer(caller)
        caller.send("ACK", cseq=cseq)
        assert "a=recvonly" in (await caller.invite(sdp(40000, "a=sendonly", version=2))).body
        await caller.bye()
    assert handler.log == [STARTED, ("media", "PCMU", "recvonly", "held"), ("end", "hangup")]


def recorded(ports: tuple[int, int], version: int = 1, labels: bool = True) -> str:
    return description(
        *(
            line
            for label, port in zip("12", ports, strict=True)
            for line in (f"m=audio {port} RTP/AVP 8", *([f"a=label:{label}"] if labels else []), "a=sendonly")
        ),
        version=version,
    )


@pytest.mark.parametrize("labels", [True, False], ids=["labels", "no labels in the answer"])
async def test_both_streams_of_a_recording_session_stay(labels: bool) -> None:
    about = metadata(PEOPLE)
    parts = [("application/sdp", recorded((40000, 40002))), (about.content_type, about.text)]
    body = "".join(f"--b\r\nContent-Type: {kind}\r\n\r\n{text}\r\n" for kind, text in parts) + "--b--\r\n"
    async with scene() as (handler, _, (caller,)):
        caller.contact += ";+sip.src"
        headers = ("Require: siprec", "Content-Type: multipart/mixed;boundary=b")
        cseq = caller.send("INVITE", body, *headers)
        await caller.answer(cseq, status=200)
        caller.send("ACK", cseq=cseq)
        await until(lambda: len(handler.calls) == 1)
        cseq, offered = await ask_for_an_offer(caller)
        assert [(each.attribute("label"), offered.direction_of(each).value) for each in offered.media] == [
            ("1", "recvonly"), ("2", "recvonly"),
        ]  # fmt: skip
        caller.send("ACK", recorded((40004, 40006), version=2, labels=labels), cseq=cseq)
        await until(lambda: [each.socket._latch.expected[1] for each in handler.calls[0].streams] == [40004, 40006])
        assert [each.label for each in handler.calls[0].streams] == ["1", "2"]
        await caller.bye()
    assert handler.log[-1] == ("end", "hangup")


def encrypted(port: int, crypto: str, *, protocol: str = "RTP/SAVP", version: int = 1) -> str:
    return description(f"m=audio {port} {protocol} 0", f"a=crypto:{crypto}", version=version)


@pytest.mark.parametrize("use", ["optional", "mandatory"])
@pytest.mark.parametrize("suite", [LONG, SHORT])
async def test_an_encrypted_call_stays_encrypted(use: str, suite: str) -> None:
    """The answer may have another key; ours, which was offered, is the one that the peer was given before."""
    sender = RtpSender()
    keys = [f"7 {suite} inline:{base64.b64encode(bytes([number]) * KEY_BYTES).decode()}" for number in (1, 2)]
    async with scene(srtp=use) as (handler, _, (caller,)):
        first = await caller.invite(encrypted(sender.port, keys[0]))
        (given,) = re.findall(r"a=crypto:(.*)", first.body)
        cseq, offered = await ask_for_an_offer(caller)
        (line,) = offered.media
        assert (line.protocol, line.attribute("crypto")) == ("RTP/SAVP", given.strip())
        mine, theirs = Crypto.parse(keys[1]), Crypto.parse(given)
        assert mine is not None and theirs is not None
        caller.send("ACK", encrypted(sender.port, f"1{keys[1][1:]}", version=2), cseq=cseq)  # many forget the tag
        await until(lambda: handler.log[-1] == ("media", "PCMU", "sendrecv", "live"))
        context = SrtpContext(theirs, mine)
        sender.seal = context.close
        sender.take()
        await sender.talk(b"\x11" * 160 * 10, line.port)
        (packets,) = handler.audio.values()
        await until(lambda: len(packets) >= 10)
        assert {packet[12:] for packet in packets} == {b"\x11" * 160}
        await until(lambda: any(context.open(packet) for packet in sender.take()))
        await caller.bye()
    assert handler.log[-1] == ("end", "hangup")
    sender.close()


@pytest.mark.parametrize("use", ["optional", "mandatory"])
@pytest.mark.parametrize(
    "answer",
    [
        encrypted(40000, f"7 {LONG} inline:{INLINE}", protocol="RTP/AVP", version=2),
        description("m=audio 40000 RTP/SAVP 0", version=2),
        encrypted(40000, f"7 {SHORT} inline:{INLINE}", version=2),
    ],
    ids=["in clear", "no key", "another suite"],
)
async def test_no_answer_takes_the_encryption_away(use: str, answer: str) -> None:
    async with scene(srtp=use) as (handler, _, (caller,)):
        await caller.invite(encrypted(40000, f"7 {LONG} inline:{INLINE}"))
        cseq, _ = await ask_for_an_offer(caller)
        caller.send("ACK", answer, cseq=cseq)
        await caller.request("BYE")
        caller.reply(caller.heard[-1], "200 OK")
    assert handler.log == [STARTED, ("end", "failed")]


async def test_a_call_without_an_offer_is_encrypted_where_that_is_mandatory() -> None:
    async with scene(srtp="mandatory") as (handler, _, (caller,)):
        cseq = caller.send("INVITE")
        answer = await caller.answer(cseq, status=200)
        (line,) = SessionDescription.parse(answer.body).media
        given = Crypto.parse(line.attribute("crypto") or "")
        assert line.protocol == "RTP/SAVP" and given is not None
        caller.send("ACK", encrypted(40000, f"{given.tag} {given.suite} inline:{INLINE}"), cseq=cseq)
        await until(lambda: handler.log == [STARTED])
        await caller.bye()
    assert handler.log[-1] == ("end", "hangup")
