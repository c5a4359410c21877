"""Where a long utterance is cut: the model drops sentences, or repeats itself, in audio that is longer than it bears.

Pure. A cut depends on the audio before the next one alone, so that a partial, the final and a replay cut at the same
places, and what stands before a cut is decoded once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asr.engines.moonshine.model import RATE_HZ

LONGEST_S = 25.0
"""A piece is at most this long. Recorded sentences behind each other, without a pause that would end an utterance, come
out as well in 35 s as in 15; at 40 s words begin to be missing, and at 50 s the model repeats itself."""
REST_S = 1.0
"""A cut leaves at least so much of what has come: the model makes up words for less."""
FRAME_S = 0.02
QUIET_FRAMES = 9
"""180 ms: a pause between two words is longer than the closure of a `t`."""


def cuts(samples: NDArray[np.float32], known: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Ends of all pieces but the last one, in samples.

    Args:
        samples: the utterance so far, at 16 kHz.
        known: cuts that this utterance has had before, with less audio.
    """
    found = list(known)
    longest, rest = round(LONGEST_S * RATE_HZ), round(REST_S * RATE_HZ)
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
