"""Whether there is any speech in a sound: the model makes words of tones, clicks, music and noise as well.

Calls and files are cut into utterances by the same detector, Silero VAD, so this speaks up where they are not: for a
client that cuts its audio itself, and for a short sound whose beginning misled it.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from audio.vad.decimate import MEMORY, decimate
from audio.vad.silero import CONTEXT, HIDDEN, MAX_BATCH, WINDOW, SileroVad

PROBABILITY = 0.5
WINDOWS = 2
"""Windows in a row, of 32 ms."""


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
        hidden, cell = np.zeros(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32)
        narrow = _narrow(samples)
        windows = (len(narrow) - CONTEXT) // WINDOW
        run = 0
        for begin in range(0, windows, MAX_BATCH):
            count = min(MAX_BATCH, windows - begin)
            views = np.lib.stride_tricks.sliding_window_view(narrow[begin * WINDOW :], CONTEXT + WINDOW)
            with self._lock:
                found = self._vad.follow(np.ascontiguousarray(views[: count * WINDOW : WINDOW]), hidden, cell)
            for at, probability in enumerate(found.tolist(), begin + 1):
                run = run + 1 if probability >= PROBABILITY else 0
                if run == WINDOWS:
                    return 2 * at * WINDOW
        return None


def _narrow(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """The samples at 8 kHz, behind the silence that the first window has before it."""
    out = np.zeros((1, CONTEXT + len(samples) // 2), np.float32)
    decimate(np.concatenate([np.zeros(MEMORY, np.float32), samples])[None], out[:, CONTEXT:])
    narrow: NDArray[np.float32] = out[0]
    return narrow
