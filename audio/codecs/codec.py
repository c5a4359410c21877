"""The codecs of legs, and the relation of their bytes to positions (8 kHz samples, the only time inside a leg)."""

from __future__ import annotations

from enum import Enum


class Codec(Enum):
    """A codec. `rtp_name` is the encoding name in SDP's rtpmap (RFC 3551 section 6); all legs are mono."""

    PCMU = ("PCMU", 0, 8000, 1, False)
    PCMA = ("PCMA", 8, 8000, 1, False)
    G722 = ("G722", 9, 8000, 1, True)
    """G.722 is sampled at 16 kHz, but its RTP clock runs at 8 kHz: an old error that RFC 3551 section 4.5.2 keeps."""
    OPUS = ("opus", 111, 48000, 1, True)
    """Opus over RTP (RFC 7587) only. Its packets may have any length, and wait undecoded for their window
    (`audio.codecs.opus`)."""
    L16 = ("L16", 96, 16000, 4, True)
    """int16 at 16 kHz, little-endian, on stream transports only; its payload type is dynamic and never offered."""

    def __init__(self, rtp_name: str, payload_type: int, clock_rate_hz: int, position_bytes: int, wide: bool) -> None:
        self.rtp_name = rtp_name
        self.payload_type = payload_type
        self.clock_rate_hz = clock_rate_hz
        self.position_bytes = position_bytes
        """The bytes on the wire per position (125 µs)."""
        self.wide = wide
        """Whether the codec has 16 kHz, which is two samples per position."""
        self.stateful = rtp_name in ("G722", "opus")
        """Whether the codec must be decoded in order, window by window."""
        self.silence = {"PCMU": 0xFF, "PCMA": 0xD5}.get(rtp_name, 0)
        """The G.711 code XORed over a leg's codes in the ring, so that zeroed memory is silence; 0 for the others."""
        self.mask = bytes(code ^ self.silence for code in range(256)) if self.silence else None
        """The table for that XOR (`bytes.translate`)."""

    def check(self, transport: str) -> None:
        """Raises ValueError if the codec cannot be used on this transport (`rtp`, `stream`)."""
        if transport == "rtp" and self is Codec.L16:
            raise ValueError("L16 is for stream transports")
        if transport != "rtp" and self is Codec.OPUS:
            raise ValueError("Opus is for RTP")
