"""Who offers DTLS-SRTP: a WebRTC endpoint of Asterisk, a softphone, rtpengine. They are refused, and nobody else is."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from lab.asterisk.calls import heard
from lab.asterisk.pbx import ADDRESS, Asterisk
from lab.events.story import check_story
from lab.patience import until
from lab.sip import rtpengine
from lab.sip.rtp_sender import RtpSender
from lab.sip.sip_peer import SipPeer, sdp
from lab.sip.softphone import phone
from lab.worker.peers import Worker


@pytest.mark.parametrize("peer", ["worker-webrtc", "worker-dtls"])
def test_an_asterisk_with_webrtc_endpoints(asterisk: Asterisk, listening: Worker, peer: str) -> None:
    known = len(listening.calls())
    asterisk.call(peer, "customer")
    assert not until(asterisk.dialled, 30, "the end of the call").startswith("ANSWER")
    (refused, *_) = asterisk.messages("SIP/2.0 488", "Warning: 302 ")
    assert any("m=audio" in invite and "UDP/TLS/RTP/SAVP" in invite for invite in asterisk.messages("INVITE sip:"))
    assert len(listening.calls()) == known, refused
    assert check_story(heard(asterisk, listening, "worker-ulaw", "customer")), "the next one is read"


def test_a_softphone_with_dtls(system: Path, listening: Worker, tmp_path: Path) -> None:
    account = "regint=0;mediaenc=dtls_srtp"
    known = len(listening.calls())
    with phone(system, tmp_path / "phone", f"sip:ann@{ADDRESS}", account=account) as ann:
        ann.do("dial", f"sip:worker@{ADDRESS}:{listening.sip_port}")
        until(lambda: "488" in ann.log(), 20, "the refusal")
    assert len(listening.calls()) == known and listening.get("/readyz")["status"] == "ready"


async def test_an_rtpengine_that_changes_the_profile(system: Path, listening: Worker, tmp_path: Path) -> None:
    """With keys in the SDP its audio is heard; with DTLS alone it is refused, though `RTP/SAVPF` as well."""
    with rtpengine.running(system, tmp_path) as relay, closing(RtpSender()) as sender:
        with closing(SipPeer(listening.sip_port)) as caller:
            offer = relay.sdp("offer", sdp(sender.port), "dtls", **{"transport-protocol": "UDP/TLS/RTP/SAVPF"})
            assert "UDP/TLS/RTP/SAVPF" in offer
            refused = await caller.answer(caller.send("INVITE", offer))
            assert refused.start_line.startswith("SIP/2.0 488") and refused.header("warning").startswith("302 ")
        with closing(SipPeer(listening.sip_port)) as caller:
            kept = {"transport-protocol": "RTP/SAVPF", "DTLS": "off", "ICE": "remove"}
            offer = relay.sdp("offer", sdp(sender.port), "keys", **kept)
            assert "RTP/SAVPF" in offer and "a=crypto:" in offer
            answer = await caller.invite(offer)
            plain = relay.sdp("answer", answer.body, "keys", ICE="remove")
            before = listening.metric("mediaworker_rtp_packets_total")
            await sender.talk(b"\xff" * 8000, int(re.search(r"m=audio (\d+)", plain)[1]))
            until(lambda: listening.metric("mediaworker_rtp_packets_total") >= before + 45, 10, "its packets")
            assert listening.metric("mediaworker_rtp_srtp_errors_total") == 0
            await caller.bye()
    assert listening.get("/readyz")["status"] == "ready"
