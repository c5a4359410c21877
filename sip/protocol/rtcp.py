"""RTCP (RFC 3550 section 6): sender and receiver reports of a stream. No I/O.

Without reports some SBCs end a call, and a carrier's monitoring shows nothing of the last mile.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SENDER, RECEIVER, DESCRIPTION, BYE = 200, 201, 202, 203
INTERVAL_S = 5.0
_FIRST_S = 2.5
_NTP_UNIX_S = 2_208_988_800
"""The seconds from 1900 to 1970, between the epochs of NTP and Unix."""
_BLOCK = struct.Struct("!IIIIII")
_CNAME = 1


@dataclass(frozen=True, slots=True)
class Reception:
    """The received packets of a stream."""

    ssrc: int
    sequence: int
    """The highest sequence number, 16 bits."""
    lost: int
    """The total of lost packets."""
    jitter: int
    """The jitter in timestamp units."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The packets that we have sent."""

    packets: int
    octets: int
    timestamp: int
    """The RTP timestamp of the present."""


class Reporter:
    """One stream's reports. Wall-clock times are Unix seconds."""

    __slots__ = (
        "_base", "_cname", "_due_s", "_echo", "_highest", "_lost", "_reported", "_sent", "_source", "_ssrc", "_uniform",
        "round_trip_s",
    )  # fmt: skip

    def __init__(
        self, ssrc: int, cname: str, now: float, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        """`cname`: the same for all streams of one source, without any address in it (RFC 7022)."""
        self._ssrc, self._cname, self._uniform = ssrc, cname.encode(), uniform
        self._due_s = now + self._uniform(0.5, 1.5) * _FIRST_S
        self._source = -1
        self._base = self._highest = self._reported = self._lost = self._sent = 0
        self._echo: tuple[int, int, float] | None = None
        """SSRC, middle of the NTP time, and arrival of the peer's last sender report."""
        self.round_trip_s: float | None = None
        """The round trip by the peer's last report; None before one."""

    def due(self, now: float) -> bool:
        """Whether it is time for a report; the next one is then 2.5 to 7.5 s away (RFC 3550 section 6.2)."""
        if now < self._due_s:
            return False
        self._due_s = now + self._uniform(0.5, 1.5) * INTERVAL_S
        return True

    def receive(self, datagram: bytes, wall_s: float) -> bool:
        """Process the peer's reports; returns False if the datagram is not RTCP."""
        try:
            packets = list(_packets(datagram))
        except (ValueError, struct.error):
            return False
        for kind, count, body in packets:
            blocks = 4
            if kind == SENDER:
                self._echo = int.from_bytes(body[:4], "big"), int.from_bytes(body[6:10], "big"), wall_s
                blocks = 24
            if kind in (SENDER, RECEIVER):
                for at in range(blocks, blocks + 24 * count, 24):
                    self._reported_on(_BLOCK.unpack_from(body, at), wall_s)
        return True

    def report(self, wall_s: float, reception: Reception | None, sent: Sent, *, bye: bool = False) -> bytes:
        """A compound packet: sender or receiver report, our name, and with `bye` the end of the stream."""
        block = self._block(wall_s, reception) if reception is not None else b""
        head = struct.pack("!I", self._ssrc)
        kind = RECEIVER
        if sent.packets != self._sent:
            self._sent, kind = sent.packets, SENDER
            ntp = round((wall_s + _NTP_UNIX_S) * 2**32) & (2**64 - 1)
            numbers = (number & 0xFFFFFFFF for number in (sent.timestamp, sent.packets, sent.octets))
            head += struct.pack("!QIII", ntp, *numbers)
        name = struct.pack("!IBB", self._ssrc, _CNAME, len(self._cname)) + self._cname
        name += bytes(4 - len(name) % 4)
        parts = [_packet(kind, bool(block), head + block), _packet(DESCRIPTION, 1, name)]
        if bye:
            parts.append(_packet(BYE, 1, struct.pack("!I", self._ssrc)))
        return b"".join(parts)

    def _block(self, wall_s: float, reception: Reception) -> bytes:
        """The report block of RFC 3550 appendix A.3, with the leg's count of lost packets."""
        if reception.ssrc != self._source:
            self._source = reception.ssrc
            self._highest = self._base = self._reported = reception.sequence
            self._lost = reception.lost
        ahead = (reception.sequence - self._highest) & 0xFFFF
        self._highest += ahead if ahead < 0x8000 else 0
        expected, missing = self._highest - self._reported, reception.lost - self._lost
        fraction = min(255, 256 * missing // expected) if expected > 0 and missing > 0 else 0
        self._reported, self._lost = self._highest, reception.lost
        total = max(-0x800000, min(0x7FFFFF, reception.lost)) & 0xFFFFFF
        middle, delay = 0, 0
        if self._echo is not None and self._echo[0] == reception.ssrc:
            middle, delay = self._echo[1], max(0, round((wall_s - self._echo[2]) * 65536)) & 0xFFFFFFFF
        highest, jitter = self._highest & 0xFFFFFFFF, reception.jitter & 0xFFFFFFFF
        return _BLOCK.pack(reception.ssrc, fraction << 24 | total, highest, jitter, middle, delay)

    def _reported_on(self, block: tuple[int, ...], wall_s: float) -> None:
        ssrc, _, _, _, middle, delay = block
        if ssrc == self._ssrc and middle:
            now = round((wall_s + _NTP_UNIX_S) * 65536) & 0xFFFFFFFF
            trip = (now - middle - delay) & 0xFFFFFFFF
            self.round_trip_s = trip / 65536 if trip < 0x80000000 else 0.0


def _packets(datagram: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(type, count, body) of each packet (RFC 3550 appendix A.2). Raises ValueError if the lengths are inconsistent."""
    at = 0
    if not datagram or len(datagram) % 4:
        raise ValueError("not a number of words")
    while at < len(datagram):
        flags, kind, words = struct.unpack_from("!BBH", datagram, at)
        end = at + 4 + 4 * words
        count = flags & 0x1F
        if flags >> 6 != 2 or not 192 <= kind <= 223 or end > len(datagram):
            raise ValueError("not RTCP")
        body = datagram[at + 4 : end]
        if len(body) < {SENDER: 24 + 24 * count, RECEIVER: 4 + 24 * count}.get(kind, 0):
            raise ValueError("fewer reports than it says")
        yield kind, count, body
        at = end


def _packet(kind: int, count: int, body: bytes) -> bytes:
    return struct.pack("!BBH", 0x80 | count, kind, len(body) // 4) + body
