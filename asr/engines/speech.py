"""Reads the samples of an utterance: where somebody speaks, and where a long utterance is cut.

Small models make words of tones, clicks, music and noise as well. Calls and files are cut into utterances by Silero
VAD, so the same detector matters here where they are not: for a client that cuts its audio itself, and for a short
sound whose beginning misled it.

Such models also drop sentences, or repeat themselves, in audio that is longer than they bear. A cut depends on the
audio before the next one alone, so that a partial, the final and a replay cut at the same places, and what stands
before a cut is decoded once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from audio.vad.decimate import MEMORY, decimate
from audio.vad.silero import CONTEXT, HIDDEN, MAX_BATCH, WINDOW, SileroVad

RATE_HZ = 16000
REST_S = 1.0
"""A cut leaves at least so much of what has come: a model makes up words for less."""
FRAME_S = 0.02
QUIET_FRAMES = 9
"""180 ms: a pause between two words is longer than the closure of a `t`."""
PROBABILITY = 0.5
WINDOW_S = 2 * WINDOW / RATE_HZ
WINDOWS = 2
"""Windows in a row."""


def cuts(samples: NDArray[np.float32], longest_s: float, known: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Ends of all pieces but the last one, in samples.

    Args:
        samples: the utterance so far, at 16 kHz.
        longest_s: a piece is at most this long.
        known: cuts that this utterance has had before, with less audio.
    """
    found = list(known)
    longest, rest = round(longest_s * RATE_HZ), round(REST_S * RATE_HZ)
    while len(samples) - (begin := found[-1] if found else 0) > longest:
        low, high = begin + longest // 2, begin + longest - rest
        found.append(low + quietest(samples[low:high]))
    return tuple(found)


def quietest(samples: NDArray[np.float32]) -> int:
    """The middle of the quietest stretch of `QUIET_FRAMES` frames, in samples."""
    size = round(FRAME_S * RATE_HZ)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    power = (frames.astype(np.float64) ** 2).sum(axis=1)
    around = np.convolve(power, np.ones(QUIET_FRAMES), "valid")
    return (int(np.argmin(around)) * 2 + QUIET_FRAMES) * size // 2


class SpeechDetector:
    """May be used by several threads."""

    def __init__(self) -> None:
        """Raises `audio.vad.weights.WeightsError`."""
        self._vad = SileroVad()
        self._lock = threading.Lock()
        """The network has one scratch memory."""

    def first(self, samples: NDArray[np.float32]) -> int | None:
        """The end of the first speech, in samples; None: there is none.

        Args:
            samples: float32 in [-1, 1), shape (n,), at 16 kHz.
        """
        run = windows = 0
        for found in self._follow(samples):
            for probability in found.tolist():
                windows += 1
                run = run + 1 if probability >= PROBABILITY else 0
                if run == WINDOWS:
                    return 2 * windows * WINDOW
        return None

    def probabilities(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """The probability of speech in each whole window of `WINDOW_S`, float32. `samples`: as in `first`."""
        return np.concatenate([np.zeros(0, np.float32), *self._follow(samples)])

    def _follow(self, samples: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
        """The probabilities of the windows, some at a time."""
        hidden, cell = np.zeros(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32)
        narrow = _narrow(samples)
        windows = (len(narrow) - CONTEXT) // WINDOW
        for begin in range(0, windows, MAX_BATCH):
            count = min(MAX_BATCH, windows - begin)
            views = np.lib.stride_tricks.sliding_window_view(narrow[begin * WINDOW :], CONTEXT + WINDOW)
            with self._lock:
                found = self._vad.follow(np.ascontiguousarray(views[: count * WINDOW : WINDOW]), hidden, cell)
            yield found


def _narrow(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """The samples at 8 kHz, behind the silence that the first window has before it."""
    out = np.zeros((1, CONTEXT + len(samples) // 2), np.float32)
    decimate(np.concatenate([np.zeros(MEMORY, np.float32), samples])[None], out[:, CONTEXT:])
    narrow: NDArray[np.float32] = out[0]
    return narrow
