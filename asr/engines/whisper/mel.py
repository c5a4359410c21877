"""The spectrogram that Whisper hears: log mel power in steps of 10 ms (Radford et al., 2022, arXiv:2212.04356).

The filters are triangles of equal area on the mel scale of Slaney's Auditory Toolbox, linear up to 1 kHz.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from asr.engines.speech import RATE_HZ

HOP, WINDOW = 160, 400
FLOOR = 1e-10
RANGE = 8.0
"""Powers of ten below the loudest bin, beneath which everything counts as silence."""
_LINEAR_HZ = 1000.0
_LINEAR_MELS = 15.0
_PER_MEL = math.log(6.4) / 27


class LogMel:
    """Turns samples into log mel power. Threads may share it."""

    def __init__(self, bins: int) -> None:
        self._filters = _filters(bins)
        self._window = np.hanning(WINDOW + 1)[:-1].astype(np.float32)

    def __call__(self, samples: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
        """The spectrogram of the samples with silence behind them, float32 of shape (bins, frames).

        Args:
            samples: float32 in [-1, 1), shape (n,), at 16 kHz; no more than the frames are long.
        """
        assert WINDOW < len(samples) <= frames * HOP
        heard = min(frames, -(-(len(samples) + WINDOW // 2) // HOP))
        before = samples[WINDOW // 2 : 0 : -1]
        behind = np.zeros(heard * HOP + WINDOW - len(before) - len(samples), np.float32)
        views = np.lib.stride_tricks.sliding_window_view(np.concatenate([before, samples, behind]), WINDOW)
        power = np.abs(np.fft.rfft(views[::HOP][:heard] * self._window)).astype(np.float32) ** 2
        found = np.log10(np.maximum(self._filters @ power.T, FLOOR))
        lowest = found.max() - RANGE
        mel = np.full((len(self._filters), frames), max(np.log10(FLOOR), lowest), np.float32)
        np.maximum(found, lowest, out=mel[:, :heard])
        scaled: NDArray[np.float32] = (mel + np.float32(4)) / np.float32(4)
        return scaled


def _filters(bins: int) -> NDArray[np.float32]:
    """Weights of the power at each frequency, shape (bins, 201)."""
    edges = _hz(np.linspace(0, _mels(RATE_HZ / 2), bins + 2))
    hz, width = np.linspace(0, RATE_HZ / 2, WINDOW // 2 + 1), np.diff(edges)
    rising = (hz - edges[:-2, None]) / width[:-1, None]
    falling = (edges[2:, None] - hz) / width[1:, None]
    area = 2 / (edges[2:] - edges[:-2])
    return (np.maximum(0, np.minimum(rising, falling)) * area[:, None]).astype(np.float32)


def _mels(hz: float) -> float:
    return _LINEAR_MELS + math.log(hz / _LINEAR_HZ) / _PER_MEL


def _hz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = mels * _LINEAR_HZ / _LINEAR_MELS
    return np.where(mels < _LINEAR_MELS, linear, _LINEAR_HZ * np.exp(_PER_MEL * (mels - _LINEAR_MELS)))
