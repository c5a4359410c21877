"""The upsampler from 8 to 16 kHz by a causal half-band FIR, whose output does not depend on the cuts of the stream."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TAPS_ABOUT = 16
"""The number of input samples on either side of an interpolated one."""
LAG = 2 * _TAPS_ABOUT
"""The delay of the output, 2 ms, in samples at 16 kHz."""


def _half_band() -> NDArray[np.float32]:
    """One side of a Kaiser-windowed half-band interpolator, nearest to the centre first: flat to 3.4 kHz within 0.1 dB,
    images 60 dB down from 4.6 kHz on."""
    distance = np.arange(_TAPS_ABOUT) + 0.5
    taps = np.sinc(distance) * np.kaiser(4 * _TAPS_ABOUT + 1, 6.0)[2 * _TAPS_ABOUT + 1 :: 2]
    return np.asarray(taps * (0.5 / taps.sum()), np.float32)


TAPS = _half_band()
MEMORY = 2 * _TAPS_ABOUT - 1
"""The number of earlier input samples that an interpolated one may depend on."""


class Upsampler:
    """Doubles the rate of one stream."""

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = np.zeros(MEMORY, np.float32)

    def feed(self, samples: NDArray[np.int16]) -> NDArray[np.float32]:
        """int16 of shape (n,) → float32 in [-1, 1) of shape (2n,). Bit for bit the same however the stream is cut."""
        count = len(samples)
        held = np.concatenate([self._memory, samples.astype(np.float32) * np.float32(1 / 32768)])
        self._memory = held[count:]
        out = np.empty(2 * count, np.float32)
        out[::2] = held[_TAPS_ABOUT - 1 : _TAPS_ABOUT - 1 + count]
        between, pair = np.zeros(count, np.float32), np.empty(count, np.float32)
        for index, tap in enumerate(TAPS):
            low, high = _TAPS_ABOUT - 1 - index, _TAPS_ABOUT + index
            np.add(held[low : low + count], held[high : high + count], out=pair)
            pair *= tap
            between += pair
        out[1::2] = between
        return out
