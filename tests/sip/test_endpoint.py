"""The SIP endpoint against SIPp: calls, holds, refusals, registration; and nothing is left afterwards."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from audio.codecs.codec import Codec
from config import ConfigError
from config.load import parse
from lab.network.ports import free_port
from lab.patience import timeout
from lab.sip.endpoint import CODES, PCMU, Recorder, codes, played, short_memory, sipp, until, worker
from lab.sip.sip_peer import SipPeer, sdp
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Pause, Send, offer, scenario
from sip.pjsip.call import SipCall
from sip.pjsip.endpoint import SipEndpoint
from sip.protocol.sdp import Direction

__all__ = ["sipp", "codes"]

PCMA = {"payload_type": 8, "rtpmap": "PCMA/8000"}
OFFER = """v=0
      o=caller 1 1 IN IP4 [local_ip]
      s=-
      c=IN IP4 [media_ip]
      t=0 0
      m=audio 40000 RTP/AVP {formats}"""


@pytest.mark.parametrize(("values", "codec"), [(PCMU, Codec.PCMU), (PCMA, Codec.PCMA)])
@pytest.mark.parametrize("transport", ["u1", "t1"])
async def test_a_call(sipp: Sipp, codes: Path, values: dict[str, object], codec: Codec, transport: str) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        audio = f"{codes},1,{values['payload_type']},{values['rtpmap']}"
        await sipp.run("call", f"127.0.0.1:{endpoint.port}", transport=transport, audio=audio, talk_ms=800, **values)
        await until(lambda: ("end", "hangup") in handler.log)
        assert handler.log == [("call", codec.rtp_name, "sendrecv"), ("end", "hangup")]
        (packets,) = handler.audio.values()
        assert played(packets) == CODES
        assert endpoint.counters.answered == endpoint.counters.invites == 1
        assert endpoint.rtp.wrong_source == 0
        assert endpoint.rtp.sent > 20  # silence, both ways from the first moment


async def test_an_offer_may_be_long(sipp: Sipp) -> None:
    """What gateways of browsers send: many codecs, and ICE candidates for every interface; then a hold of the same."""
    candidates = [
        f"a=candidate:{number} 1 UDP 2113937151 2001:db8::{number:x}:1 5{number:04} typ host generation 0"
        for number in range(60)
    ]
    codecs = [f"a=rtpmap:{number} SPEEX/{8000 * (number % 2 + 1)}" for number in range(97, 127)]
    formats = " ".join(map(str, range(97, 127)))
    lines = [f"m=audio 40000 RTP/AVP {formats} 8", *codecs, "a=rtpmap:8 PCMA/8000", *candidates]
    handler = Recorder()
    async with worker(handler) as endpoint:
        text = scenario(
            Send("INVITE", offer("\n".join(lines)), has=("RTP/AVP 8", "a=sendrecv")),
            Pause(50),
            Send("INVITE", offer("\n".join([*lines, "a=sendonly"]), version=2), has=("RTP/AVP 8", "a=recvonly")),
            Send("BYE"),
        )
        await sipp.run(text, f"127.0.0.1:{endpoint.port}", options=("-buff_size", "131072"))
        await until(lambda: endpoint.calls == 0)
    assert handler.log == [
        ("call", "PCMA", "sendrecv"), ("media", "PCMA", "recvonly", "held"), ("end", "hangup"),
    ]  # fmt: skip


async def test_what_a_handler_learns_of_a_call(sipp: Sipp, codes: Path) -> None:
    handler = Recorder()
    seen: list[SipCall] = []
    handler.on_answering = seen.append
    async with worker(handler) as endpoint:
        await sipp.run("call", f"127.0.0.1:{endpoint.port}", audio=f"{codes},1,0,PCMU/8000", talk_ms=50, **PCMU)
        call = seen.pop()
        assert call.from_uri.startswith("sip:4711@127.0.0.1:")
        assert call.to_uri == f"sip:1000@127.0.0.1:{endpoint.port}"
        assert call.headers["x-ticket"] == "42"
        assert call.headers["call-id"] == call.call_id
        assert call.peer == "127.0.0.1"
        assert call.account == ""
        assert call.streams[0].telephone_event == 101
        del call


async def test_hold_is_answered_as_rfc_3264_asks_and_the_call_goes_on(sipp: Sipp, codes: Path) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        audio = f"{codes},1,0,PCMU/8000"
        await sipp.run("hold", f"127.0.0.1:{endpoint.port}", audio=audio, talk_ms=1000, **PCMU)
        await until(lambda: handler.log[-1] == ("end", "hangup"))
        assert handler.log[1:-1] == [
            ("media", "PCMU", "recvonly", "held"),
            ("media", "PCMU", "inactive", "held"),
            ("media", "PCMU", "sendrecv", "live"),
            ("media", "PCMU", "recvonly", "held"),
            ("media", "PCMU", "sendrecv", "live"),
        ]
        (packets,) = handler.audio.values()
        assert played(packets) == CODES


async def test_a_reinvite_changes_the_codec_and_a_refused_one_changes_nothing(sipp: Sipp) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        await sipp.run("recodec", f"127.0.0.1:{endpoint.port}", **PCMU)
        await until(lambda: handler.log[-1] == ("end", "hangup"))
        assert handler.log[1:-1] == [("media", "PCMA", "sendrecv", "live")]


async def test_cancel_in_the_same_burst_as_the_invite() -> None:
    def message(method: str, port: int, body: str = "", to_tag: str = "") -> bytes:
        return (
            f"{method} sip:1000@127.0.0.1:{port} SIP/2.0\r\nVia: SIP/2.0/TCP 127.0.0.1:9;branch=z9hG4bK1\r\n"
            f"From: <sip:4711@127.0.0.1>;tag=1\r\nTo: <sip:1000@127.0.0.1:{port}>{to_tag}\r\nCall-ID: burst\r\n"
            f"CSeq: 1 {method}\r\nContact: <sip:4711@127.0.0.1:9;transport=tcp>\r\nMax-Forwards: 70\r\n"
            f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    handler = Recorder()
    offer = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 40000 RTP/AVP 0\r\n"
    async with worker(handler) as endpoint, timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(message("INVITE", endpoint.port, offer) + message("CANCEL", endpoint.port))
        heard = ""
        while "SIP/2.0 487" not in heard or "CSeq: 1 CANCEL" not in heard:
            heard += (await reader.read(65536)).decode()
        statuses = re.findall(r"^SIP/2.0 (\d+).*?^CSeq: 1 (\w+)", heard, re.MULTILINE | re.DOTALL)
        assert set(statuses) - {("100", "INVITE")} == {("200", "CANCEL"), ("487", "INVITE")}
        to = re.search(r"SIP/2.0 487.*?To: [^\r]*>(;tag=[^\r]*)", heard, re.DOTALL)
        assert to is not None
        writer.write(message("ACK", endpoint.port, to_tag=to[1]))
        await until(lambda: endpoint.counters.cancelled == 1)
        assert handler.log == []
        writer.close()
        await writer.wait_closed()


async def test_an_offer_in_the_200_is_answered_in_the_ack(sipp: Sipp, codes: Path) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        audio = f"{codes},1,0,PCMU/8000"
        await sipp.run("late_offer", f"127.0.0.1:{endpoint.port}", audio=audio, talk_ms=1000, **PCMU)
        await until(lambda: handler.log[-1] == ("end", "hangup"))
        assert handler.log == [("call", "PCMU", "sendrecv"), ("end", "hangup")]
        (packets,) = handler.audio.values()
        assert played(packets) == CODES
        assert endpoint.rtp.sent > 10


async def test_lines_that_are_not_used_are_refused_in_place(sipp: Sipp) -> None:
    handler = Recorder()
    labels: list[str] = []
    handler.on_answering = lambda call: labels.append(call.streams[0].label)
    async with worker(handler) as endpoint:
        await sipp.run("lines", f"127.0.0.1:{endpoint.port}")
        assert handler.log[0] == ("call", "PCMA", "sendrecv")
        assert labels == ["10"]


async def test_digits_by_info(sipp: Sipp) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        await sipp.run("info", f"127.0.0.1:{endpoint.port}", **PCMU)
        assert handler.log[1:3] == [("dtmf", "5", "160"), ("dtmf", "#", "0")]


async def test_nobody_can_make_the_worker_call_elsewhere(sipp: Sipp) -> None:
    async with worker(Recorder()) as endpoint:
        await sipp.run("refer", f"127.0.0.1:{endpoint.port}", **PCMU)


async def test_a_keep_alive_by_options(sipp: Sipp) -> None:
    async with worker(Recorder()) as endpoint:
        await sipp.run("options", f"127.0.0.1:{endpoint.port}")


async def test_the_worker_hangs_up(sipp: Sipp) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        caller = sipp.start("until_bye", f"127.0.0.1:{endpoint.port}", **PCMU)
        await until(lambda: bool(handler.calls))
        call = handler.calls.pop()
        await asyncio.sleep(0)
        await until(lambda: endpoint.rtp.sent > 0)
        call.hangup()
        call.hangup()
        await caller
        assert handler.log.count(("end", "local")) == 1
        del call


async def test_a_call_without_media_times_out(sipp: Sipp) -> None:
    handler = Recorder()
    async with worker(handler, media_timeout_s=0.5) as endpoint:
        await sipp.run("until_bye", f"127.0.0.1:{endpoint.port}", **PCMU)
        assert handler.log[-1] == ("end", "media_timeout")
        assert endpoint.counters.media_timeouts == 1


async def test_a_handler_that_fails_ends_its_own_call_only(sipp: Sipp, codes: Path) -> None:
    handler = Recorder()
    handler.on_answering = lambda call: call.missing  # type: ignore[attr-defined]
    sdp = OFFER.format(formats="0")
    async with worker(handler) as endpoint:
        target = f"127.0.0.1:{endpoint.port}"
        await sipp.run("refused", target, status=500, header="SIP/2.0 500", sdp=sdp)
        assert handler.log[-1] == ("end", "failed")
        handler.on_answering = lambda call: None
        await sipp.run("call", target, audio=f"{codes},1,0,PCMU/8000", talk_ms=50, **PCMU)
        assert handler.log[-1] == ("end", "hangup")


async def test_an_offer_that_pjsip_refuses_ends_its_own_call_only(
    sipp: Sipp, codes: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = Recorder()
    key = f"\n      a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{'A' * 40}"  # one tag for two keys (RFC 4568 section 5.1)
    sdp = OFFER.format(formats="0").replace("RTP/AVP", "RTP/SAVP") + key + key
    async with worker(handler) as endpoint:
        target = f"127.0.0.1:{endpoint.port}"
        await sipp.run("refused", target, status=406, header="SIP/2.0 406", sdp=sdp)
        await sipp.run("call", target, audio=f"{codes},1,0,PCMU/8000", talk_ms=50, **PCMU)
        assert handler.log[-1] == ("end", "hangup")
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("status", "header", "formats"),
    [(486, "SIP/2.0 486 Busy Here", "0"), (503, "Retry-After: 10", "0"), (488, "SIP/2.0 488", "18 4")],
)
async def test_refusals(sipp: Sipp, status: int, header: str, formats: str) -> None:
    handler = Recorder()
    async with worker(handler, max_calls=1) as endpoint:
        target = f"127.0.0.1:{endpoint.port}"
        sdp = OFFER.format(formats=formats)
        occupying: asyncio.Task[None] | None = None
        if status == 486:
            occupying = sipp.start("until_bye", target, **PCMU)
            await until(lambda: endpoint.calls == 1)
        elif status == 503:
            endpoint.refuse_new()
        await sipp.run("refused", target, status=status, header=header, sdp=sdp)
        assert endpoint.counters.refused == {status: 1}
        if occupying:
            await until(lambda: bool(handler.calls))
            handler.calls.pop().hangup()
            await occupying
        else:
            assert handler.log == []


async def test_the_handler_may_refuse(sipp: Sipp) -> None:
    handler = Recorder()
    handler.refuse = 486
    async with worker(handler) as endpoint:
        sdp = OFFER.format(formats="0")
        await sipp.run("refused", f"127.0.0.1:{endpoint.port}", status=486, header="SIP/2.0 486", sdp=sdp)
        assert handler.log == []


async def test_only_those_on_the_access_list_may_call(sipp: Sipp, codes: Path) -> None:
    handler = Recorder()
    async with worker(handler, trusted=(), allow=["127.0.0.8/30"]) as endpoint:
        target = f"127.0.0.1:{endpoint.port}"
        sdp = OFFER.format(formats="0")
        await sipp.run("refused", target, status=403, header="SIP/2.0 403", sdp=sdp)
        assert endpoint.counters.refused == {403: 1}
        audio = f"{codes},1,0,PCMU/8000"
        await sipp.run("call", target, source="127.0.0.9", audio=audio, talk_ms=50, **PCMU)
        assert endpoint.counters.answered == 1


async def test_the_public_address_is_what_the_peer_is_told(sipp: Sipp) -> None:
    handler = Recorder()
    async with worker(handler, public_address="198.51.100.7") as endpoint:
        await sipp.run("public", f"127.0.0.1:{endpoint.port}", address="198.51.100.7")


async def test_twenty_calls_at_once(sipp: Sipp, codes: Path) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        audio = f"{codes},1,0,PCMU/8000"
        with short_memory():
            await sipp.run(
                "call", f"127.0.0.1:{endpoint.port}", calls=20, at_once=20, rate=100, transport="t1",
                audio=audio, talk_ms=1500, **PCMU,
            )  # fmt: skip
            await until(lambda: handler.log.count(("end", "hangup")) == 20)
            assert endpoint.counters.answered == 20
            assert [played(packets) for packets in handler.audio.values()] == [CODES] * 20
            await until(lambda: endpoint.transactions == endpoint.dialogs == 0)


async def test_registration_with_digest_and_its_refresh(sipp: Sipp) -> None:
    registrar = free_port()
    account = {"registrar": f"sip:127.0.0.1:{registrar}", "user": "alice", "password": "secret", "name": "trunk"}
    server = sipp.start("registrar", port=registrar)
    handler = Recorder()
    async with worker(handler, accounts=[account]) as endpoint:
        await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=8)
        assert endpoint.registrations[0].code == 200
        assert endpoint.counters.registrations_ok == 1
        await until(lambda: endpoint.counters.registrations_ok == 2, timeout_s=8)
    await server  # it has seen the refresh and the end of the registration
    assert endpoint.registrations[0].state == "unregistered"


async def test_a_wrong_password_is_a_failed_registration(sipp: Sipp) -> None:
    registrar = free_port()
    account = {"registrar": f"sip:127.0.0.1:{registrar}", "user": "alice", "password": "wrong"}
    server = sipp.start("registrar_refusing", port=registrar)
    async with worker(Recorder(), accounts=[account]) as endpoint:
        await until(lambda: endpoint.registrations[0].state == "failed", timeout_s=8)
        assert endpoint.registrations[0].code == 403
        assert endpoint.counters.registrations_failed == 1
    await server


def test_a_bad_access_list_entry_is_named() -> None:
    with pytest.raises(ConfigError, match=r"sip\.allow\[1\] = 'nonsense'"):
        SipEndpoint(parse({"sip": {"allow": ["10.0.0.0/8", "nonsense"]}}), Recorder())


def test_hold_directions() -> None:
    assert [direction.mirrored.value for direction in Direction] == ["sendrecv", "recvonly", "sendonly", "inactive"]


@pytest.mark.parametrize("uri", ["urn:service:sos", "urn:service:sos.fire", "http://pbx.example/", "mailto:a@b"])
async def test_a_call_to_a_uri_of_another_scheme_is_answered_and_counted(uri: str) -> None:
    """A phone in trouble must not wait for nothing: RFC 3261 section 8.2.2.1, and RFC 5031 for emergency calls."""
    handler = Recorder()
    with capture_logs() as logs:
        async with worker(handler) as endpoint:
            with closing(SipPeer(endpoint.port)) as caller:
                refused = await caller.answer(caller.send("INVITE", sdp(40000), uri=uri))
                assert refused.start_line.startswith("SIP/2.0 416 ")
                caller.to_tag = ""
                asked = await caller.answer(caller.send("OPTIONS", uri=uri), "OPTIONS")
                assert asked.start_line.startswith("SIP/2.0 416 ")
                assert endpoint.counters.refused[416] == endpoint.counters.invites == 1
                await caller.invite(sdp(40000))
                answer = await caller.answer(caller.send("BYE", uri=uri), "BYE")
                assert answer.start_line.startswith("SIP/2.0 416 ") and endpoint.calls == 1
                await caller.bye()
    (line,) = (each for each in logs if each["event"] == "SIP request refused")
    assert line["status"] == 416 and uri.partition(":")[0] in line["reason"]


UNREADABLE = (
    b"INVITE sip: SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\n"
    b"To: <sip:c@d>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n",
    b"INVITE sip:c@d SIP/3.0\r\nCall-ID: 2\r\nContent-Length: 0\r\n\r\n",
    b"OPTIONS sip:c@d SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1;branch=z9hG4bK3\r\nContent-Length: 0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: pbx\r\nContent-Length: 0\r\n\r\n",
)
KEEP_ALIVE = b"\r\n\r\n"


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["udp", "tcp"])
async def test_what_cannot_be_read_is_counted_and_logged_once_a_minute(kind: socket.SocketKind) -> None:
    with capture_logs() as logs:
        async with worker(Recorder(), left_open=2) as endpoint:
            with closing(socket.socket(socket.AF_INET, kind)) as sender, closing(SipPeer(endpoint.port)) as other:
                sender.connect(("127.0.0.1", endpoint.port))
                for number, message in enumerate(UNREADABLE, 1):
                    sender.send(KEEP_ALIVE)
                    sender.send(message)
                    await until(lambda: endpoint.admission.counters.unreadable >= number)  # noqa: B023
                await other.answer(other.send("OPTIONS", within=False), "OPTIONS")
                assert endpoint.admission.counters.unreadable == len(UNREADABLE), (
                    "and no line ends that keep a NAT open"
                )
    (line,) = (each for each in logs if each["event"] == "a SIP message that cannot be read was dropped")
    assert line["begins"] == "INVITE sip: SIP/2.0"
