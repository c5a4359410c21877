"""RTCP in real calls."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest

from audio import Detector
from audio.codecs.codec import Codec
from config import Endpointing
from config.addresses import bracketed
from lab.sip.endpoint import Recorder, sipp, until, worker
from lab.sip.packets import block
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Pause, Send, offer, scenario
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
