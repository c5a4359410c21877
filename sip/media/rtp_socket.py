"""RTP sockets, which `sip.media.receiver` reads once per media tick, and from which silence and reports are sent.

Opening and closing are synchronous, so that SIP callbacks can do both.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from audio import Leg, is_rtcp
from audio.codecs import opus
from audio.codecs.codec import Codec
from audio.rtp.silence_ticker import SAMPLES, SilenceTicker
from config.metrics.counters import counter
from config.network.addresses import Family
from sip.media.latching import Address, Arrived, SourceLatch
from sip.media.nat import Spare
from sip.media.ports import RtpPorts
from sip.media.receiver import RtpReceiver
from sip.media.rtcp_socket import received_reports
from sip.media.source_filter import attach, detach, drops
from sip.protocol.rtcp import Reception, Reporter, Sent
from sip.protocol.srtp import Crypto, SrtpContext

_REPORT_ERRORS: dict[Family, tuple[int, int]] = {"IP4": (socket.IPPROTO_IP, 11), "IP6": (socket.IPPROTO_IPV6, 25)}
"""IP_RECVERR of ip(7) and IPV6_RECVERR of ipv6(7); Python has no names for them."""
_MSG_ERRQUEUE = 0x2000
"""recvmsg(2)"""
_MAX_ERRORS = 128
KEEPALIVE = 20
"""The payload type of keep-alive packets, which is unassigned in RFC 3551 and never offered."""
# 20 ms of each codec that decode to silence: 0 in G.711, -2 of 32768 in G.722.
_SILENCE = {
    Codec.PCMU: b"\xff" * SAMPLES,
    Codec.PCMA: b"\xd5" * SAMPLES,
    Codec.G722: b"\xff" * SAMPLES,
    Codec.OPUS: opus.SILENCE,
}


@dataclass(slots=True)
class RtpCounters:
    """Totals over all sockets, for metrics."""

    closed_packets: int = 0
    """The packets accepted by sockets that are closed; `packets` counts all."""
    refused_source: int = 0
    """The datagrams of other sources that were read."""
    closed_filtered: int = 0
    """The datagrams that the kernel dropped at sockets that are closed; `wrong_source` counts all."""
    rtcp: int = counter("Counts RTCP packets received.")
    sent: int = counter("Counts RTP packets of silence sent.")
    send_errors: int = counter("Counts RTP packets that could not be sent.")
    rtcp_sent: int = counter("Counts RTCP packets sent.")
    rtcp_malformed: int = counter("Counts RTCP packets that could not be parsed.")
    srtp_errors: int = counter("Counts SRTP packets that failed authentication or were replayed.")
    open_sockets: set[RtpSocket] = field(default_factory=set)

    @property
    def packets(self) -> int:
        """The accepted packets of all sockets, summed at each scrape."""
        return self.closed_packets + sum(socket.packets for socket in self.open_sockets)

    @property
    def wrong_source(self) -> int:
        """The datagrams of other sources, read or dropped by the kernel."""
        filtered = self.closed_filtered + sum(socket.filtered for socket in self.open_sockets)
        return self.refused_source + filtered


def _ignore(datagram: bytes, now: float) -> None:
    """Discard packets until a handler has set `on_packet`."""


class RtpSocket:
    """One stream's socket. Accepted datagrams go to `leg`, or without one to `on_packet(datagram, now)`."""

    __slots__ = (
        "_control", "_counters", "_dropped_before", "_filtered", "_guarded", "_kept_s", "_keys", "_latch", "_marker",
        "_octets", "_opened_s", "_payload_type", "_ports", "_receiver", "_reporter", "_reports", "_sequence",
        "_socket", "_srtp", "_ssrc", "_ticker", "_ticks", "_time", "_timestamp", "leg", "mapped", "mapped_reports",
        "on_packet", "port", "sent", "silence", "slot",
    )  # fmt: skip

    def __init__(
        self,
        ports: RtpPorts,
        receiver: RtpReceiver,
        counters: RtpCounters,
        ticker: SilenceTicker,
        loop: asyncio.AbstractEventLoop,
        *,
        family: Family = "IP4",
        cname: str = "",
        spare: Spare | None = None,
    ) -> None:
        """`cname`: our name in RTCP, "" for no RTCP; `spare`: ports to use instead of opening some of `ports`.

        Raises PortsExhausted.
        """
        self._ports, self._receiver, self._counters, self._ticker = ports, receiver, counters, ticker
        self._socket: socket.socket = ports.open(loop.time(), family) if spare is None else spare.media
        self._socket.setsockopt(*_REPORT_ERRORS[family], 1)
        self._latch = SourceLatch()
        self._time = loop.time
        self._ssrc = secrets.randbits(32)
        self._sequence = secrets.randbits(15)  # the top bit clear: room before the first wrap (RFC 3711 section 3.3.1)
        self._timestamp = secrets.randbits(31)
        self._marker = 0x80
        self._payload_type = 0
        self._guarded, self._filtered, self._dropped_before = False, 0, 0
        self._ticks = SAMPLES  # of the RTP clock in 20 ms
        self._keys: tuple[Crypto, Crypto] | None = None
        self._srtp: SrtpContext | None = None
        self.port: int = self._socket.getsockname()[1]
        self.leg: Leg | None = None
        """The leg that gets the packets, plain ones in bulk; None before a handler has set it."""
        self.on_packet: Callable[[bytes, float], None] = _ignore
        self.silence = b""
        """The payload of 20 ms of silence in the codec that is sent."""
        self.sent = self._octets = 0
        self.mapped = spare.mapped if spare is not None else None
        """The public address behind a NAT; None if unknown."""
        self.mapped_reports = spare.mapped_reports if spare is not None else None
        """The public address of the RTCP port; None if unknown."""
        self._kept_s = -math.inf
        self._opened_s = loop.time()
        self._control: Address | None = None
        self._reporter = Reporter(self._ssrc, cname, self._opened_s) if cname else None
        self._reports: socket.socket | None = None
        if cname:
            self._reports = ports.above(self._socket) if spare is None else spare.reports
        counters.open_sockets.add(self)
        self.slot = receiver.add(self, self._socket)

    @property
    def packets(self) -> int:
        """The number of accepted packets; 0 again when closed."""
        return int(self._receiver.packets[self.slot]) if self.slot >= 0 else 0

    @property
    def filtered(self) -> int:
        """The number of datagrams of other sources that the kernel has dropped."""
        return self._filtered + (drops(self._socket) - self._dropped_before if self._guarded else 0)

    def filter_sources(self, on: bool) -> None:
        """Let the kernel drop datagrams that come neither from the source nor from those that may replace it."""
        self._filtered, self._guarded = self.filtered, False
        try:
            if on:
                attach(self._socket, self._latch.welcome, self._latch.ssrc)
            else:
                detach(self._socket)
        except OSError:
            return  # no filter was attached, or the kernel has none: then every datagram is read and refused here
        self._guarded, self._dropped_before = on, drops(self._socket)

    def expect_another(self, expected: bool) -> None:
        """Stop filtering before an answer that may bring another source, until `expect`.

        `expected` False: filter again, because the answer was not sent, or changed nothing."""
        if expected:
            self.filter_sources(False)
        self._receiver.latch(self.slot, not expected and self._latch.source is not None)

    @property
    def last_packet_s(self) -> float:
        """When the last packet arrived; before the first one, when the socket was opened."""
        return max(self._opened_s, self._latch.last_packet_s, self._received_s)

    @property
    def _received_s(self) -> float:
        return float(self._receiver.last_packet_s[self.slot]) if self.slot >= 0 else 0.0

    @property
    def source(self) -> Address | None:
        """The locked source of the stream."""
        return self._latch.source

    def expect(
        self,
        remote: Address | None,
        codec: Codec,
        payload_type: int,
        *,
        silence: bool,
        keys: tuple[Crypto, Crypto] | None = None,
        control: Address | None = None,
    ) -> None:
        """Apply the result of an offer/answer: learn the source again, and send silence from now on or not.

        `keys`: the peer's key and ours, None without encryption; unchanged keys keep their state.
        `control`: the destination of RTCP in the SDP.
        """
        self._control = control
        if keys != self._keys:
            self._keys, self._srtp = keys, SrtpContext(*keys) if keys is not None else None
        self._latch.expect(remote, self._time())
        self.filter_sources(False)
        self._receiver.latch(self.slot, False)
        self._receiver.lock(self.slot, None)
        self._payload_type = payload_type
        self.silence = _SILENCE[codec]
        self._ticks = SAMPLES * codec.clock_rate_hz // 8000
        if silence:
            self._ticker.add(self)
        else:
            self._ticker.remove(self)

    def send(self, payload: bytes, ticks: int = 1) -> None:
        """Send one RTP packet of 20 ms. `ticks`: the number of periods since the last one."""
        if ticks > 1:
            self._timestamp += self._ticks * (ticks - 1)
        if self._send(self._marker | self._payload_type, payload):
            self._marker = 0
        self._timestamp += self._ticks

    def send_silence(self, periods: int) -> None:
        """Send one packet of silence (`SilenceSender`); missed periods only advance the RTP timestamp."""
        self.send(self.silence, periods)

    def _send(self, second: int, payload: bytes) -> bool:
        """Send a packet whose second header byte is `second`; returns False without a destination."""
        target = self._latch.target
        if target is None:
            return False
        header = struct.pack("!BBHII", 0x80, second, self._sequence & 0xFFFF, self._timestamp & 0xFFFFFFFF, self._ssrc)
        packet = header + payload
        sealed = packet if self._srtp is None else self._srtp.close(packet)
        try:
            try:
                self._socket.sendto(sealed, target)
            except ConnectionRefusedError:  # an ICMP error for an earlier packet, reported once
                self._socket.sendto(sealed, target)
        except OSError:
            # A full buffer or an ICMP error: the packet is lost, as may happen on any network.
            self._counters.send_errors += 1
        else:
            self.sent += 1
            self._octets += len(payload)
            self._counters.sent += 1
        self._sequence += 1
        return True

    def keep(self, now: float, every_s: float) -> None:
        """Keep a NAT binding of a stream that sends nothing, by a packet of unknown type (RFC 6263 section 4.6)."""
        if self._ticker.has(self) or now - self._kept_s < every_s:
            return
        self._kept_s = now
        self._send(KEEPALIVE, b"")

    def refused(self) -> bool:
        """Whether the peer's host has reported a closed port (ICMP) since the last call.

        It counts only after RTP has arrived from there: a peer may not have opened its port yet.
        """
        found = False
        for _ in range(_MAX_ERRORS):
            try:
                *_, address = self._socket.recvmsg(0, 0, _MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            except OSError:
                break
            found = found or address[:2] == self._latch.target
        return found and self.packets > 0

    def forward(self, datagram: bytes, target: Address) -> None:
        """Send a datagram unchanged."""
        self._socket.sendto(datagram, target)
        self.sent += 1

    def send_report(self, now: float, *, bye: bool = False) -> None:
        """Send an RTCP report if one is due. `bye`: send one now, with the BYE that ends the stream."""
        reporter = self._reporter
        if reporter is None or not (bye or reporter.due(now)):
            return
        wall_s = time.time()
        for datagram, address, came_s in received_reports(self._reports) if self._reports is not None else ():
            if self._is_peer(address):
                self._receive_rtcp(datagram, came_s)
        target = self._control_target()
        if target is None:
            return
        reception = self.leg.reception_report if self.leg is not None else None
        sent = Sent(self.sent, self._octets, self._timestamp)
        packet = reporter.report(wall_s, Reception(*reception) if reception is not None else None, sent, bye=bye)
        sealed = packet if self._srtp is None else self._srtp.close_rtcp(packet)
        try:
            if self._control == self._latch.expected or self._reports is None:
                self._socket.sendto(sealed, target)
            else:
                self._reports.sendto(sealed, target)
        except OSError:
            self._counters.send_errors += 1
        else:
            self._counters.rtcp_sent += 1

    def _control_target(self) -> Address | None:
        """The destination of RTCP: the SDP's, or the port beside the media's source if that is another one (NAT)."""
        media, expected = self._latch.target, self._latch.expected
        if media is None or self._control is None or expected is None or media == expected:
            return self._control
        return media if self._control == expected else (media[0], media[1] + 1)

    def _is_peer(self, address: Address) -> bool:
        """Whether RTCP from this address is the peer's: it comes from the host to which we send, from any port."""
        target = self._latch.target
        return target is not None and address[0] == target[0]

    def _receive_rtcp(self, datagram: bytes, wall_s: float) -> None:
        self._counters.rtcp += 1
        plain = datagram if self._srtp is None else self._srtp.open_rtcp(datagram)
        if plain is None:
            self._counters.srtp_errors += 1
        elif self._reporter is not None and not self._reporter.receive(plain, wall_s):
            self._counters.rtcp_malformed += 1

    def drain(self) -> None:
        """Read the datagrams that wait for the next tick."""
        self._receiver.drain(self.slot)

    def close(self) -> None:
        """Close the socket. Idempotent. The port rests before another stream gets it."""
        if self._socket.fileno() < 0:
            return
        if self._reports is not None:
            self.send_report(self._time(), bye=True)
            self._reports.close()
        self._ticker.remove(self)
        self._counters.open_sockets.discard(self)
        self._counters.closed_packets += self.packets
        self._filtered, self._guarded = self.filtered, False
        self._counters.closed_filtered += self._filtered
        self._receiver.remove(self.slot)
        self.slot = -1
        self._ports.close(self._socket, self._time())
        self.on_packet, self.leg = _ignore, None

    def receive(self, datagram: bytes, address: Address, now: float) -> None:
        """Handle a datagram that is no plain packet of the locked source (`receiver.DatagramTarget`)."""
        if is_rtcp(datagram):
            if self._is_peer(address):
                self._receive_rtcp(datagram, time.time() - self._time() + now)
            else:
                self._counters.rtcp += 1
            return
        if self._srtp is not None:
            plain = self._srtp.open(datagram)
            if plain is None:
                self._counters.srtp_errors += 1
                return
            datagram = plain
        for each, arrival_s in self._accept(datagram, address, now):
            if self.leg is not None:
                self.leg.receive_rtp(each, arrival_s)
            else:
                self.on_packet(each, arrival_s)

    def _accept(self, datagram: bytes, address: Address, now: float) -> tuple[Arrived, ...]:
        """The datagrams that the latch delivers now. A change of the source is passed to the receiver."""
        latch, receiver = self._latch, self._receiver
        before, latch.last_packet_s = (latch.source, latch.ssrc), max(latch.last_packet_s, self._received_s)
        if address != latch.source and self.leg is not None and (report := self.leg.reception_report) is not None:
            ssrc, sequence, *_ = report  # most packets are processed in bulk, without the latch
            latch.sequence = sequence if ssrc == latch.ssrc else latch.sequence
        accepted = latch.accept(datagram, address, now)
        if self.slot >= 0:
            receiver.packets[self.slot] += len(accepted)
            receiver.last_packet_s[self.slot] = latch.last_packet_s
            if (latch.source, latch.ssrc) != before:
                receiver.latch(self.slot, latch.source is not None)
                if self._srtp is None:  # each encrypted packet must be decrypted by its socket
                    receiver.lock(self.slot, latch.source)
        self._counters.refused_source += latch.refused
        latch.refused = 0
        return accepted
