"""RTCP: what the reports say, what is believed of the peer's, and both in real calls."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Detector
from audio.codecs.codec import Codec
from config import Endpointing
from config.addresses import bracketed
from sip.protocol.rtcp import BYE, DESCRIPTION, RECEIVER, SENDER, Reception, Reporter, Sent, _packets
from tests.sip.test_endpoint import Recorder, sipp, until, worker
from tests.support.sipp_caller import Sipp
from tests.support.sipp_scenario import Pause, Send, offer, scenario

__all__ = ["sipp"]
NOTHING = Sent(0, 0, 0)
HALF = 2**31


def reporter() -> Reporter:
    return Reporter(0x11223344, "us", 0.0, lambda low, high: (low + high) / 2)


def block(report: bytes, at: int = 8) -> tuple[int, float, int, int, int, int, int]:
    """SSRC, fraction lost, lost, highest, jitter, LSR, DLSR (RFC 3550 section 6.4.1)."""
    ssrc, loss, highest, jitter, middle, delay = struct.unpack_from("!IIIIII", report, at)
    return ssrc, (loss >> 24) / 256, loss & 0xFFFFFF, highest, jitter, middle, delay


def test_the_first_bytes_of_a_report() -> None:
    ours = reporter()
    assert ours.report(0.0, None, NOTHING) == bytes.fromhex("80c90001 11223344 81ca0003 11223344 01027573 00000000")
    report = ours.report(0.5, Reception(7, 65535, 0, 80), Sent(50, 8000, 2**32 + 5), bye=True)
    assert report[:28] == bytes.fromhex("81c8000c 11223344 83aa7e80 80000000 00000005 00000032 00001f40")
    assert [kind for kind, _, _ in _packets(report)] == [SENDER, DESCRIPTION, BYE]
    assert ours.report(1.0, None, Sent(50, 8000, 5))[1] == RECEIVER, "nothing sent since"


def test_loss_is_of_the_time_since_the_last_report_and_sequence_numbers_go_round() -> None:
    ours = reporter()
    assert block(ours.report(0.0, Reception(7, 65500, 3, 0), NOTHING))[:4] == (7, 0.0, 3, 65500)
    assert block(ours.report(5.0, Reception(7, 4, 13, 9), NOTHING))[:5] == (7, 0.25, 13, 65540, 9)
    assert block(ours.report(10.0, Reception(7, 4, 13, 9), NOTHING))[:4] == (7, 0.0, 13, 65540), "nothing came"
    assert block(ours.report(15.0, Reception(7, 44, 12, 9), NOTHING))[:4] == (7, 0.0, 12, 65580), "late, not lost"
    assert block(ours.report(20.0, Reception(8, 100, 12, 9), NOTHING))[:4] == (8, 0.0, 12, 100), "another source"


def test_what_the_sender_said_last_is_sent_back_with_its_age() -> None:
    ours, theirs = reporter(), Reporter(7, "them", 0.0)
    assert ours.receive(theirs.report(1000.25, None, Sent(1, 160, 0)), 1000.5)
    answer = ours.report(1003.0, Reception(7, 1, 0, 0), Sent(1, 160, 0))
    _, _, _, _, _, middle, delay = block(answer, 28)
    assert (middle & 0xFFFF, delay) == (0x4000, int(2.5 * 65536))
    assert theirs.receive(answer, 1003.35)
    assert theirs.round_trip_s == pytest.approx(0.6, abs=0.001), "there 0.25 s and back 0.35 s"
    assert block(ours.report(1004.0, Reception(8, 1, 0, 0), Sent(1, 160, 0)))[5:] == (0, 0), "that was another source"


def test_reports_come_every_few_seconds() -> None:
    ours = reporter()
    assert [second for second in range(20) if ours.due(second)] == [3, 8, 13, 18]


@given(st.binary(max_size=200))
def test_any_bytes_are_rtcp_or_not(data: bytes) -> None:
    assert isinstance(reporter().receive(data, 0.0), bool)


PACKETS = st.lists(st.tuples(st.integers(192, 223), st.integers(0, 31), st.binary(max_size=120)), max_size=5)


@given(PACKETS, st.integers(0, 3))
def test_any_packets_are_rtcp_or_not(packets: list[tuple[int, int, bytes]], cut: int) -> None:
    parts = [
        struct.pack("!BBH", 0x80 | count, kind, len(body) // 4) + body[: len(body) // 4 * 4]
        for kind, count, body in packets
    ]
    data = b"".join(parts)
    ours = reporter()
    ours.receive(data[: len(data) - cut], 0.0)
    ours.report(5.0, Reception(1, 1, 0, 0), NOTHING)


# -- calls -------------------------------------------------------------------------------------------------------------


class Peer:
    """RTP from one port, with packets left out, and the port above for what comes back."""

    def __init__(self, mux: bool, host: str) -> None:
        self._host = host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for port in range(31100, 31900, 2):
            self.media, self.control = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
            try:
                self.media.bind((host, port))
                self.control.bind((host, port + 1))
            except OSError:
                self.close()
                continue
            break
        self.port: int = self.media.getsockname()[1]
        for each in (self.media, self.control):
            each.setblocking(False)
        self.source = self.media if mux else self.control
        self.reporter = Reporter(99, "them", 0.0)

    async def talk(self, port: int, mux: bool) -> None:
        begun_s = time.monotonic()
        for number in range(500):
            await asyncio.sleep(begun_s + 0.020 * number - time.monotonic())
            if number % 10 != 5:
                header = struct.pack("!BBHII", 0x80, 0, number + 65200 & 0xFFFF, 160 * number, 99)
                self.media.sendto(header + bytes(160), (self._host, port))
            if number % 50 == 0:
                report = self.reporter.report(time.time(), None, Sent(number + 1, 160 * number, 160 * number))
                self.source.sendto(report, (self._host, port if mux else port + 1))

    def received(self) -> list[bytes]:
        found = []
        while True:
            try:
                data = self.source.recv(2048)
            except BlockingIOError:
                return found
            if 192 <= data[1] <= 223:
                found.append(data)

    def close(self) -> None:
        self.media.close()
        self.control.close()


@pytest.mark.parametrize(("mux", "host"), [(False, "127.0.0.1"), (True, "127.0.0.1"), (False, "::1")])
async def test_a_sender_hears_what_of_it_arrives(sipp: Sipp, mux: bool, host: str) -> None:
    handler, peer, detector = Recorder(), Peer(mux, host), Detector()
    leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp")

    def give(call: object) -> None:
        handler.calls[-1].streams[0].socket.leg = leg

    handler.on_answering = give
    lines = f"m=audio {peer.port} RTP/AVP 0\na=rtpmap:0 PCMU/8000" + ("\na=rtcp-mux" if mux else "")
    steps = scenario(Send("INVITE", offer(lines), has=["a=rtcp-mux"] if mux else []), Pause(11000), Send("BYE"))
    async with worker(handler, host6="::1") as endpoint:
        target = f"{bracketed(host)}:{endpoint.port}"
        caller = sipp.start(steps, target, source=host, timeout_s=30)
        await until(lambda: len(handler.calls) == 1)
        await peer.talk(handler.calls[0].streams[0].socket.port, mux)
        while_up = peer.received()
        assert while_up, "not a report in ten seconds"
        assert while_up[-1][1] == SENDER, "silence is sent, so the reports are a sender's"
        ssrc, fraction, lost, highest, _, middle, delay = block(while_up[-1], 28)
        assert ssrc == 99 and 0 < lost <= 50 and 65200 < highest < 65200 + 500
        assert middle and delay / 65536 < 2
        for report in while_up:
            assert peer.reporter.receive(report, time.time())
        assert peer.reporter.round_trip_s is not None
        del handler.calls[:]
        await caller
        await until(lambda: bool(last := peer.received()) and [kind for kind, _, _ in _packets(last[-1])][-1] == BYE)
        assert endpoint.rtp.rtcp >= 5 and endpoint.rtp.rtcp_malformed == 0 and endpoint.rtp.rtcp_sent >= 2
    peer.close()
