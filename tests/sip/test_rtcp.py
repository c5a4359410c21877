"""RTCP in real calls."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time

import pytest

from audio import Detector
from audio.codecs.codec import Codec
from config import Endpointing
from config.network.addresses import bracketed
from lab.patience import timeout
from lab.sip.endpoint import Recorder, sipp, until, worker
from lab.sip.packets import block
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Expect, Send, offer, scenario
from sip.protocol import rtcp
from sip.protocol.rtcp import BYE, SENDER, Reporter, Sent, _packets

__all__ = ["sipp"]

HALF = 2**31


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
        self.sent = 0
        self.reports: list[bytes] = []

    async def talk(self, port: int, mux: bool) -> None:
        """Until two reports have come back. One packet in ten is lost, and one in ten has a report of ours with it."""
        begun_s = time.monotonic()
        while len(self.reports) < 2:
            await asyncio.sleep(begun_s + 0.020 * self.sent - time.monotonic())
            if self.sent % 10 != 5:
                header = struct.pack("!BBHII", 0x80, 0, self.sent + 65200 & 0xFFFF, 160 * self.sent, 99)
                self.media.sendto(header + bytes(160), (self._host, port))
            if self.sent % 10 == 0:
                octets = 160 * self.sent
                report = self.reporter.report(time.time(), None, Sent(self.sent + 1, octets, octets))
                self.source.sendto(report, (self._host, port if mux else port + 1))
            self.sent += 1
            self.listen()

    def listen(self) -> list[bytes]:
        """All reports that have come so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.source.recv(2048)
                if 192 <= data[1] <= 223:
                    self.reports.append(data)
        return self.reports

    def close(self) -> None:
        self.media.close()
        self.control.close()


@pytest.mark.parametrize(("mux", "host"), [(False, "127.0.0.1"), (True, "127.0.0.1"), (False, "::1")])
async def test_a_sender_hears_what_of_it_arrives(
    sipp: Sipp, monkeypatch: pytest.MonkeyPatch, mux: bool, host: str
) -> None:
    monkeypatch.setattr(rtcp, "_FIRST_S", 0.3)
    monkeypatch.setattr(rtcp, "INTERVAL_S", 0.3)
    handler, peer, detector = Recorder(), Peer(mux, host), Detector()
    leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp")

    def give(call: object) -> None:
        handler.calls[-1].streams[0].socket.leg = leg

    handler.on_answering = give
    lines = f"m=audio {peer.port} RTP/AVP 0\na=rtpmap:0 PCMU/8000" + ("\na=rtcp-mux" if mux else "")
    steps = scenario(Send("INVITE", offer(lines), has=["a=rtcp-mux"] if mux else []), Expect("BYE"))
    async with worker(handler, host6="::1") as endpoint:
        caller = sipp.start(steps, f"{bracketed(host)}:{endpoint.port}", source=host, timeout_s=30)
        await until(lambda: len(handler.calls) == 1)
        begun_s = time.monotonic()
        async with timeout(20):
            await peer.talk(handler.calls[0].streams[0].socket.port, mux)
        last = peer.reports[-1]
        assert last[1] == SENDER, "silence is sent, so the reports are a sender's"
        ssrc, fraction, lost, highest, _, middle, delay = block(last, 28)
        assert ssrc == 99 and 0 < lost <= peer.sent / 10 + 1 and 65200 < highest < 65200 + peer.sent
        assert middle and 0 < delay / 65536 < time.monotonic() - begun_s
        for report in peer.reports:
            assert peer.reporter.receive(report, time.time())
        assert peer.reporter.round_trip_s is not None
        await until(lambda: endpoint.rtp.rtcp == -(-peer.sent // 10))
        handler.calls.pop().hangup()
        await caller
        await until(lambda: [kind for kind, _, _ in _packets(peer.listen()[-1])][-1] == BYE)
        assert endpoint.rtp.rtcp_malformed == 0 and endpoint.rtp.rtcp_sent >= 3
    peer.close()
