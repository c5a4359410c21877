"""AudioSocket's frames: `u8 kind | u16 length, big-endian | payload`. No I/O.

The format is Asterisk's (docs.asterisk.org, Configuration/Channel-Drivers/AudioSocket). Bytes may
be cut anywhere; the frames do not depend on the cuts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

HANGUP, UUID, DTMF, ERROR = 0x00, 0x01, 0x03, 0xFF
SLIN = 0x10
RATES_HZ: dict[int, int] = {
    SLIN: 8000, 0x11: 12000, 0x12: 16000, 0x13: 24000, 0x14: 32000, 0x15: 44100, 0x16: 48000, 0x17: 96000, 0x18: 192000,
}  # fmt: skip
"""Frame kind → sample rate of its int16 little-endian mono samples."""
MAX_FRAME_S = 1.0
"""The longest frame of audio: Asterisk sends 20 ms at a time."""

_HEADER = struct.Struct("!BH")


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    payload: bytes = b""
    """At most 65,535 bytes."""

    def __bytes__(self) -> bytes:
        return _HEADER.pack(self.kind, len(self.payload)) + self.payload

    @property
    def too_long(self) -> bool:
        rate_hz = RATES_HZ.get(self.kind)
        return rate_hz is not None and len(self.payload) > 2 * rate_hz * MAX_FRAME_S


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    @property
    def head(self) -> tuple[int, int] | None:
        """Kind and length of the next frame, whose payload may be incomplete."""
        return _HEADER.unpack_from(self._data) if len(self._data) >= _HEADER.size else None

    def next(self, kind: int | None = None) -> Frame | None:
        """The next frame, or None while it is incomplete, or if its kind is not the requested one."""
        if (head := self.head) is None or kind not in (None, head[0]):
            return None
        (kind, length), data = head, self._data
        end = _HEADER.size + length
        if len(data) < end:
            return None
        frame = Frame(kind, bytes(data[_HEADER.size : end]))
        del data[:end]  # a bytearray moves its start: this copies nothing
        return frame


def silence(kind: int) -> bytes:
    """A frame with 20 ms of silence."""
    return bytes(Frame(kind, bytes(RATES_HZ[kind] // 50 * 2)))
