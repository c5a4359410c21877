"""RTP packets and RTCP report blocks by hand, and what a source latch lets through."""

from __future__ import annotations

import struct

from sip.media.latching import SourceLatch


def block(report: bytes, at: int = 8) -> tuple[int, float, int, int, int, int, int]:
    """SSRC, fraction lost, lost, highest, jitter, LSR, DLSR (RFC 3550 section 6.4.1)."""
    ssrc, loss, highest, jitter, middle, delay = struct.unpack_from("!IIIIII", report, at)
    return ssrc, (loss >> 24) / 256, loss & 0xFFFFFF, highest, jitter, middle, delay


PEER = ("192.0.2.9", 4000)


def rtp(sequence: int, ssrc: int = 1, payload_type: int = 0) -> bytes:
    return struct.pack("!BBHII", 0x80, payload_type, sequence & 0xFFFF, sequence * 160, ssrc) + bytes(160)


def accept(latch: SourceLatch, datagram: bytes, address: tuple[str, int], now: float) -> tuple[bytes, ...]:
    """What is delivered, without its times."""
    return tuple(each for each, _ in latch.accept(datagram, address, now))
