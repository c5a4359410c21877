"""The likeness of a segment of one leg to the sound of another leg: a leaking headset, an echo, or a mix of both.

The other leg's sound is located in the segment by the delay with the highest generalised cross-correlation (Knapp and
Carter, 1976). Then the segment is predicted from it by the best filter of 16 ms (least squares; Haykin, Adaptive Filter
Theory, chapter 2). The filter explains most of a copy's energy, about half of a copy through a room, and almost nothing
of independent speech.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audio.rtp.clock import RATE_HZ

BEFORE = 400 * RATE_HZ // 1000
"""The samples of the other leg that are examined before the segment; the longest delay is a little shorter."""
AFTER = 100 * RATE_HZ // 1000
"""The samples of the other leg that are examined after the segment: the clocks of two legs may differ by this much."""
TAPS, LEAD = 128, 32
"""The length of the filter, and the part of it before the found delay."""
LONGEST_LEAD, LONGEST = LEAD - AFTER, BEFORE - TAPS - 1
"""The range of delays that are searched."""
NEAR = 8 * RATE_HZ // 1000
FLATTER = 0.9
"""The pre-emphasis: this share of a sample is subtracted from the next one. Without it the voice's lowest tones would
dominate."""
WHITE = 0.7
"""The exponent of spectral whitening in the search for the delay: 1 is the phase transform (GCC-PHAT; Knapp and Carter,
1976)."""
FLOOR_FRAME, FLOOR_SHARE = 160, 10
"""The noise level is that of the quietest tenth of the frames of 20 ms."""
BLOCK = 250 * RATE_HZ // 1000
"""The length of a block, which is about that of a short word."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Likeness:
    """The part of a segment that another leg explains."""

    share: float
    """The explained share of the segment's energy above its noise, 0 to 1 or a little above."""
    worst: float
    """The lowest such share over all loud blocks of a quarter of a second."""
    gain_db: float
    """The level of the explained part relative to the other leg."""
    delay: int
    """How much later the sound is in this leg than in the other one, in samples."""


def likenesses(own: NDArray[np.int16], other: NDArray[np.int16], near: int | None = None) -> Iterator[Likeness]:
    """The likeness at a delay within 8 ms of `near`, if given, and the one at the likeliest delay if that differs.

    `own`: (n,) samples at 8 kHz, at least 1,000; `other`: (BEFORE + n + AFTER,), beginning BEFORE samples earlier.
    """
    here, there = _flat(own), _flat(other)
    found = _correlation(here, there)
    delay = None
    if near is not None:
        delay = _delay(found, near - NEAR, near + NEAR)
        yield _at(here, there, delay)
    if (likeliest := _delay(found, LONGEST_LEAD, LONGEST)) != delay:
        yield _at(here, there, likeliest)


def _at(here: Floats, there: Floats, delay: int) -> Likeness:
    begin = BEFORE - delay - (TAPS - LEAD)
    source = there[begin : begin + len(here) + TAPS]
    explained = _predicted(here, source)
    rest, energy = here - explained, float(here @ here) + 1.0
    unexplained = float(rest @ rest)
    noise = min(_noise(here) * len(here), 0.95 * energy)
    loudness = float(np.mean(source**2)) + 1.0
    return Likeness(
        share=(energy - unexplained) / (energy - noise),
        worst=_worst(here, rest, noise / len(here)),
        gain_db=float(10 * np.log10((float(np.mean(explained**2)) + 1e-3) / loudness)),
        delay=delay,
    )


def _flat(samples: NDArray[np.int16]) -> Floats:
    flat = samples.astype(np.float32)
    flat[1:] -= np.float32(FLATTER) * flat[:-1].copy()
    return flat


def _correlation(here: Floats, there: Floats) -> NDArray[Any]:
    """The magnitude of the correlation of segment and other leg, by lag modulo its length.

    The other leg's samples begin BEFORE samples earlier.
    """
    size = 1 << (len(there) + TAPS).bit_length()
    cross = np.fft.rfft(here, size) * np.conj(np.fft.rfft(there, size))
    cross *= np.maximum(np.abs(cross), 1e-9) ** -WHITE
    return np.abs(np.fft.irfft(cross, size))


def _delay(found: NDArray[Any], low: int, high: int) -> int:
    """The lag from `low` to `high` at which the correlation is highest."""
    lags = np.arange(max(low, LONGEST_LEAD), min(high, LONGEST) + 1)
    return int(lags[np.argmax(found[(lags - BEFORE) % len(found)])])


def _predicted(here: Floats, source: Floats) -> Floats:
    """The best prediction of `here` by a filter over `source`.

    `source` is TAPS samples longer, and its sample TAPS - LEAD corresponds to the first sample of `here`.
    """
    size = 1 << (len(source) + TAPS).bit_length()
    spectrum = np.fft.rfft(source, size)
    own = np.fft.irfft(np.abs(spectrum) ** 2, size)[:TAPS]
    # The correlation with `source` from TAPS samples to one sample later; tap 0 is the latest of them.
    with_here = np.fft.irfft(np.fft.rfft(here, size) * np.conj(spectrum), size)[-TAPS:]
    distance = np.abs(np.subtract.outer(np.arange(TAPS), np.arange(TAPS)))
    matrix = own[distance] + np.eye(TAPS) * (1e-3 * own[0] + 1.0)
    taps = np.linalg.solve(matrix, with_here)
    made = np.fft.irfft(np.fft.rfft(taps, size) * spectrum, size)
    result: Floats = made[TAPS:][: len(here)].astype(np.float32)
    return result


def _noise(here: Floats) -> float:
    """The mean energy per sample of the quietest frames."""
    frames = here[: len(here) // FLOOR_FRAME * FLOOR_FRAME].reshape(-1, FLOOR_FRAME)
    energies = np.sort(np.mean(frames**2, axis=1))
    return float(np.mean(energies[: max(1, len(energies) // FLOOR_SHARE)]))


def _worst(here: Floats, rest: Floats, noise: float) -> float:
    """The lowest explained share over half-overlapping blocks that are at least half as loud as the mean."""
    count = max(1, 2 * len(here) // BLOCK - 1)
    begins = np.linspace(0, max(0, len(here) - BLOCK), count).astype(int)
    energies = np.array([np.mean(here[begin : begin + BLOCK] ** 2) for begin in begins])
    rests = np.array([np.mean(rest[begin : begin + BLOCK] ** 2) for begin in begins])
    loud = energies >= 0.5 * energies.mean() + noise
    return float((1 - rests[loud] / np.maximum(energies[loud], 1e-3)).min()) if loud.any() else 1.0
