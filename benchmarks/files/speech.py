"""The recordings of the file benchmark: utterances of the clips with pauses between them, as WAV. A seed decides."""

from __future__ import annotations

import random
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audio.codecs.g711 import ulaw_decode
from benchmarks.engine import plan

RATE_HZ = 8000
LEAD_MS = 60
"""Of the clip before an utterance."""
PAUSES_S = (0.8, 2.5)
"""More than what ends an utterance, so that each becomes a stretch of its own."""
NOISE = 8.0
"""RMS of the pauses: about -72 dBFS, for digital silence would be passed by the VAD."""


def write(folder: Path, clips: Sequence[bytes], *, files: int, seconds: float) -> list[Path]:
    """So many recordings of that length; no two say the same."""
    pieces = [ulaw_decode(plan.cut(clip, where, LEAD_MS)) for clip in clips for where in plan.utterances(clip)]
    paths = [folder / f"{number}.wav" for number in range(files)]
    for number, path in enumerate(paths):
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
            file.writeframes(recording(pieces, seconds, number).astype("<i2").tobytes())
    return paths


def recording(pieces: Sequence[NDArray[np.int16]], seconds: float, seed: int) -> NDArray[np.int16]:
    """As many utterances as fit, but one at least, and quiet to the end."""
    rng, noise = random.Random(seed), np.random.default_rng(seed)
    length, at = round(seconds * RATE_HZ), round(rng.uniform(*PAUSES_S) * RATE_HZ)
    found: list[tuple[int, NDArray[np.int16]]] = []
    while not found or at < length:
        piece = rng.choice(pieces)
        if found and at + len(piece) > length:
            break
        found.append((at, piece))
        at += len(piece) + round(rng.uniform(*PAUSES_S) * RATE_HZ)
    at, piece = found[-1]
    samples = noise.normal(0.0, NOISE, max(length, at + len(piece) + RATE_HZ)).astype(np.int16)
    for at, piece in found:
        samples[at : at + len(piece)] = piece
    return samples if len(found) == 1 else samples[:length]
