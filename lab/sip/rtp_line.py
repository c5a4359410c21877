"""An RTP socket of ours with a sender and a receiver at its ends."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from audio.codecs.codec import Codec
from audio.rtp.packet import RtpPacket
from audio.rtp.silence_ticker import SilenceTicker
from config.network.addresses import SOCKETS, family_of
from lab.network.ports import port_range
from lab.patience import timeout
from sip.media.ports import RtpPorts
from sip.media.receiver import RtpReceiver
from sip.media.rtp_socket import RtpCounters, RtpSocket


class Watched(RtpSocket):
    """Counts the datagrams that do not go in bulk."""

    looked_at = 0

    def receive(self, datagram: bytes, address: tuple[str, int], now: float) -> None:
        self.looked_at += 1
        super().receive(datagram, address, now)


class Line:
    """An RtpSocket on loopback and a peer's plain socket."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.loop = asyncio.get_running_loop()
        self.ports = RtpPorts(*port_range(1000), host="127.0.0.1", host6="::1")
        self.receiver = RtpReceiver()
        self.counters = RtpCounters()
        self.ticker = SilenceTicker(self.loop)
        self.heard: list[tuple[bytes, float]] = []
        self.rtp = self.open()
        self.peer = self.plain()

    def open(self) -> Watched:
        family = family_of(self.host)
        opened = Watched(self.ports, self.receiver, self.counters, self.ticker, self.loop, family=family)
        opened.on_packet = lambda datagram, now: self.heard.append((datagram, now))
        return opened

    def plain(self) -> socket.socket:
        plain = socket.socket(SOCKETS[family_of(self.host)], socket.SOCK_DGRAM)
        plain.setblocking(False)
        plain.bind((self.host, 0))
        return plain

    @property
    def address(self) -> tuple[str, int]:
        """The peer's."""
        host, port, *_ = self.peer.getsockname()
        return host, port

    def expect_peer(self, codec: Codec = Codec.PCMU, *, silence: bool = False) -> None:
        self.rtp.expect(self.address, codec, codec.payload_type, silence=silence)

    def send(self, datagram: bytes, source: socket.socket | None = None) -> None:
        (source or self.peer).sendto(datagram, (self.host, self.rtp.port))

    async def counted(self, count: int) -> None:
        async with timeout(5):
            while self.counters.packets + self.counters.wrong_source + self.counters.rtcp < count:
                for _ in self.receiver.sweep(time.monotonic()):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.001)

    async def receive(self, count: int) -> list[RtpPacket]:
        async with timeout(5):
            return [RtpPacket.parse(await self.loop.sock_recv(self.peer, 2048)) for _ in range(count)]


@pytest.fixture(params=["127.0.0.1", "::1"], ids=["IPv4", "IPv6"])
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    line = Line(request.param)
    yield line
    line.rtp.close()
    line.rtp.close()
    line.peer.close()
    assert line.ports.in_use == len(line.ticker) == 0
