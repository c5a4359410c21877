"""RTP packets (RFC 3550 section 5.1) and telephone events (RFC 4733 section 2.3): parse and print, without I/O.

A live leg does not build an `RtpPacket` for every datagram: `audio.fast_path` handles plain packets as arrays. This
module is the definition that both must agree with.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from audio.errors import AudioError

HEADER = struct.Struct("!BBHII")
"""The fixed header: V P X CC | M PT | sequence | timestamp | SSRC."""
COMFORT_NOISE = 13
"""The static payload type of comfort noise (RFC 3389)."""
_EXTENSION = struct.Struct("!HH")
_EVENT = struct.Struct("!BBH")
_DIGITS = "0123456789*#ABCD"


class RtpError(AudioError, ValueError):
    """A datagram is not RTP, or a payload is not a telephone event: the peer's fault, which is counted."""


@dataclass(frozen=True, slots=True)
class RtpPacket:
    """One RTP packet; `parse` and `bytes()` are inverses, except for the content of padding."""

    payload_type: int
    sequence: int
    timestamp: int
    ssrc: int
    payload: bytes = b""
    marker: bool = False
    csrc: tuple[int, ...] = ()
    extension_profile: int | None = None
    """The 16 bits "defined by profile" of the header extension; None without an extension."""
    extension: bytes = b""
    """The header extension, a multiple of four bytes; valid with `extension_profile`."""
    padding_bytes: int = 0
    """The bytes of padding, including the last one, which holds the count; 0 without padding."""

    @classmethod
    def parse(cls, datagram: bytes) -> RtpPacket:
        """Parse a datagram. Raises RtpError if version, lengths or padding are wrong (RFC 3550 appendix A.1)."""
        if len(datagram) < HEADER.size:
            raise RtpError(f"{len(datagram)} bytes are no RTP header")
        flags, kind, sequence, timestamp, ssrc = HEADER.unpack_from(datagram)
        if flags >> 6 != 2:
            raise RtpError(f"RTP version {flags >> 6}")
        if is_rtcp(datagram):
            raise RtpError("RTCP, not RTP")
        start, end = HEADER.size + 4 * (flags & 0x0F), len(datagram)
        if start > end:
            raise RtpError("truncated CSRC list")
        csrc = struct.unpack_from(f"!{flags & 0x0F}I", datagram, HEADER.size)
        profile, extension = None, b""
        if flags & 0x10:
            if start + _EXTENSION.size > end:
                raise RtpError("truncated header extension")
            profile, words = _EXTENSION.unpack_from(datagram, start)
            start += _EXTENSION.size
            if start + 4 * words > end:
                raise RtpError("truncated header extension")
            extension = bytes(datagram[start : start + 4 * words])
            start += 4 * words
        padding = 0
        if flags & 0x20:
            padding = datagram[-1]
            if not 0 < padding <= end - start:
                raise RtpError(f"{padding} bytes of padding in {end - start}")
            end -= padding
        return cls(
            payload_type=kind & 0x7F, sequence=sequence, timestamp=timestamp, ssrc=ssrc,
            payload=bytes(datagram[start:end]), marker=bool(kind & 0x80), csrc=csrc,
            extension_profile=profile, extension=extension, padding_bytes=padding,
        )  # fmt: skip

    def __bytes__(self) -> bytes:
        assert len(self.csrc) < 16 and len(self.extension) % 4 == 0 and 0 <= self.padding_bytes < 256
        extended = self.extension_profile is not None
        flags = 0x80 | bool(self.padding_bytes) << 5 | extended << 4 | len(self.csrc)
        kind = self.marker << 7 | self.payload_type
        parts = [HEADER.pack(flags, kind, self.sequence, self.timestamp, self.ssrc)]
        parts.append(struct.pack(f"!{len(self.csrc)}I", *self.csrc))
        if self.extension_profile is not None:
            parts.append(_EXTENSION.pack(self.extension_profile, len(self.extension) // 4) + self.extension)
        parts.append(self.payload)
        if self.padding_bytes:
            parts.append(bytes(self.padding_bytes - 1) + bytes([self.padding_bytes]))
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class TelephoneEvent:
    """The payload of a telephone-event packet (RFC 4733 section 2.3); its time is the packet's timestamp."""

    event: int
    duration: int
    """The duration in timestamp units since the start of the event, which is the packet's timestamp."""
    end: bool = False
    volume: int = 10
    """The power level in -dBm0, 0 to 63."""

    @classmethod
    def parse(cls, payload: bytes) -> TelephoneEvent:
        """Parse a payload. Raises RtpError if it is shorter than four bytes; events after the first are ignored."""
        if len(payload) < _EVENT.size:
            raise RtpError(f"{len(payload)} bytes are no telephone event")
        event, flags, duration = _EVENT.unpack_from(payload)
        return cls(event=event, duration=duration, end=bool(flags & 0x80), volume=flags & 0x3F)

    def __bytes__(self) -> bytes:
        return _EVENT.pack(self.event, self.end << 7 | self.volume, self.duration)

    @property
    def digit(self) -> str | None:
        """The digit: `0`-`9`, `*`, `#`, `A`-`D`; None for events that are no DTMF digit (flash, tones)."""
        return _DIGITS[self.event] if self.event < len(_DIGITS) else None


def is_rtcp(datagram: bytes) -> bool:
    """Whether a datagram on a port shared by both is RTCP (RFC 5761 section 4): its packet type is 192-223."""
    return len(datagram) > 1 and 192 <= datagram[1] <= 223
