"""Decimation from 16 to 8 kHz for the VAD: a half-band FIR over a batch of windows, each with the samples before it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_PAIRS = 6


def _half_band() -> NDArray[np.float32]:
    """One side of a Kaiser-windowed half-band filter's odd taps, nearest to the centre first; the centre is 1/2."""
    distance = 2 * np.arange(_PAIRS) + 1
    ideal = np.sin(np.pi * distance / 2) / (np.pi * distance)
    window = np.kaiser(4 * _PAIRS + 1, 5.0)[2 * _PAIRS + distance]
    taps = ideal * window
    taps *= 0.25 / taps.sum()  # unit gain at 0 Hz: both sides together add 1/2 to the centre's 1/2
    return np.asarray(taps, np.float32)


_TAPS = _half_band()
MEMORY = 4 * _PAIRS - 2
"""The samples at 16 kHz before a window that must be kept for it."""
LAG = (2 * _PAIRS - 1) // 2
"""The delay of the output in positions (8 kHz), rounded down: 0.6 ms."""


def decimate(samples: Floats, out: Floats) -> None:
    """(batch, MEMORY + 2n) at 16 kHz → (batch, n) at 8 kHz.

    Output i is centred on input sample 2i + 2 * 6 - 1, so that it needs nothing beyond the window.
    """
    count = out.shape[1]
    center = 2 * _PAIRS - 1
    np.multiply(samples[:, center : center + 2 * count : 2], np.float32(0.5), out=out)
    for pair, tap in enumerate(_TAPS):
        distance = 2 * pair + 1
        both = samples[:, center - distance :: 2][:, :count] + samples[:, center + distance :: 2][:, :count]
        both *= tap
        out += both
