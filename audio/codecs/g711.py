"""G.711 µ-law and A-law, as tables (ITU-T G.711; bit-exact with Sun's reference g711.c and CPython's audioop)."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Codes = bytes | bytearray | memoryview | NDArray[np.uint8]
Samples = NDArray[np.int16]


def ulaw_decode(codes: Codes) -> Samples:
    """µ-law codes → int16, one sample per code."""
    return ULAW[np.frombuffer(codes, np.uint8)]


def alaw_decode(codes: Codes) -> Samples:
    """A-law codes → int16, one sample per code. A-law has no zero: its silence 0xD5 is +8."""
    return ALAW[np.frombuffer(codes, np.uint8)]


def ulaw_encode(samples: Samples) -> bytes:
    """int16 → µ-law codes."""
    return _ulaw_codes()[np.asarray(samples, np.int16).view(np.uint16)].tobytes()


def alaw_encode(samples: Samples) -> bytes:
    """int16 → A-law codes."""
    return _alaw_codes()[np.asarray(samples, np.int16).view(np.uint16)].tobytes()


def _ulaw_samples() -> Samples:
    code = ~np.arange(256, dtype=np.uint8)
    segment, step = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    magnitude = ((step << 3) + 0x84 << segment) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _alaw_samples() -> Samples:
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    segment, step = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    # Segment 0 has no leading bit and the step of segment 1.
    magnitude = np.where(segment == 0, (step << 4) + 8, (step << 4) + 0x108 << np.maximum(segment - 1, 0))
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


ULAW: Samples = _ulaw_samples()
ALAW: Samples = _alaw_samples()


def _all_samples() -> NDArray[np.int32]:
    """Every int16, in the order of its bits read as uint16: the index of the encoding tables."""
    return np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)


@cache
def _ulaw_codes() -> NDArray[np.uint8]:
    linear = _all_samples() >> 2
    mask = np.where(linear < 0, 0x7F, 0xFF)
    magnitude = np.minimum(np.abs(linear) + 0x21, 0x1FFF)
    segment = np.searchsorted([0x3F, 0x7F, 0xFF, 0x1FF, 0x3FF, 0x7FF, 0xFFF, 0x1FFF], magnitude)
    codes: NDArray[np.uint8] = ((segment << 4 | magnitude >> segment + 1 & 15) ^ mask).astype(np.uint8)
    return codes


@cache
def _alaw_codes() -> NDArray[np.uint8]:
    linear = _all_samples() >> 3
    mask = np.where(linear < 0, 0x55, 0xD5)
    magnitude = np.where(linear < 0, -linear - 1, linear)
    segment = np.searchsorted([0x1F, 0x3F, 0x7F, 0xFF, 0x1FF, 0x3FF, 0x7FF, 0xFFF], magnitude)
    codes: NDArray[np.uint8] = ((segment << 4 | magnitude >> np.maximum(segment, 1) & 15) ^ mask).astype(np.uint8)
    return codes
