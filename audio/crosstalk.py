"""Whether a stretch of one leg is the sound of another leg: a headset that leaks, an echo, a mix of both.

The other leg's sound is found in the stretch at the delay of the highest generalised cross-correlation (Knapp and
Carter, 1976), and the stretch is predicted from it by the filter of 16 ms that does so best (least squares; Haykin,
Adaptive Filter Theory, chapter 2). Of a copy the filter explains most, through a room still half; of somebody else's
speech next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audio.rtp.clock import RATE_HZ

BEFORE = 400 * RATE_HZ // 1000
"""Samples of the other leg before the stretch that are looked at: the longest delay is a little less."""
AFTER = 100 * RATE_HZ // 1000
"""Samples of the other leg behind the stretch that are looked at: the clocks of two legs may differ by so much."""
TAPS, LEAD = 128, 32
"""The length of the filter, and the part of it before the delay that was found."""
LONGEST_LEAD, LONGEST = LEAD - AFTER, BEFORE - TAPS - 1
"""Delays that are looked for."""
NEAR = 8 * RATE_HZ // 1000
FLATTER = 0.9
"""This share of a sample is taken off the next one: otherwise the voice's lowest tones would decide everything."""
WHITE = 0.7
"""This share of a frequency's loudness does not count when the delay is looked for: 1 is the phase transform (GCC-PHAT;
Knapp and Carter, 1976)."""
FLOOR_FRAME, FLOOR_SHARE = 160, 10
"""Noise is what the quietest tenth of the frames of 20 ms have."""
BLOCK = 250 * RATE_HZ // 1000
"""A word of its own is about as long."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Likeness:
    """The part of a stretch that another leg explains."""

    share: float
    """The share of its energy above its noise, 0 to 1 or a little above."""
    worst: float
    """The same share of the loud quarter of a second of which the least is explained."""
    gain_db: float
    """The level of the explained part against the other leg."""
    delay: int
    """Samples: how much later it is here than there."""


def likenesses(own: NDArray[np.int16], other: NDArray[np.int16], near: int | None = None) -> Iterator[Likeness]:
    """The likeness at a delay within 8 ms of `near`, if that is known, and that at the likeliest delay if it is another
    one.

    `own`: (n,) samples at 8 kHz, at least 1,000; `other`: (BEFORE + n + AFTER,), from BEFORE samples before on.
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
    """The size of the correlation by lag, modulo its length, of the stretch and the other leg, which begins BEFORE
    samples earlier."""
    size = 1 << (len(there) + TAPS).bit_length()
    cross = np.fft.rfft(here, size) * np.conj(np.fft.rfft(there, size))
    cross *= np.maximum(np.abs(cross), 1e-9) ** -WHITE
    return np.abs(np.fft.irfft(cross, size))


def _delay(found: NDArray[Any], low: int, high: int) -> int:
    """Where the correlation is highest."""
    lags = np.arange(max(low, LONGEST_LEAD), min(high, LONGEST) + 1)
    return int(lags[np.argmax(found[(lags - BEFORE) % len(found)])])


def _predicted(here: Floats, source: Floats) -> Floats:
    """`here` as far as a filter makes it from `source`, TAPS samples longer, whose sample TAPS - LEAD is as old."""
    size = 1 << (len(source) + TAPS).bit_length()
    spectrum = np.fft.rfft(source, size)
    own = np.fft.irfft(np.abs(spectrum) ** 2, size)[:TAPS]
    # With `source` from TAPS samples to one sample later: tap 0 is the latest of them.
    with_here = np.fft.irfft(np.fft.rfft(here, size) * np.conj(spectrum), size)[-TAPS:]
    distance = np.abs(np.subtract.outer(np.arange(TAPS), np.arange(TAPS)))
    matrix = own[distance] + np.eye(TAPS) * (1e-3 * own[0] + 1.0)
    taps = np.linalg.solve(matrix, with_here)
    made = np.fft.irfft(np.fft.rfft(taps, size) * spectrum, size)
    result: Floats = made[TAPS:][: len(here)].astype(np.float32)
    return result


def _noise(here: Floats) -> float:
    """The energy of a sample of the quietest frames."""
    frames = here[: len(here) // FLOOR_FRAME * FLOOR_FRAME].reshape(-1, FLOOR_FRAME)
    energies = np.sort(np.mean(frames**2, axis=1))
    return float(np.mean(energies[: max(1, len(energies) // FLOOR_SHARE)]))


def _worst(here: Floats, rest: Floats, noise: float) -> float:
    """Over blocks that overlap by a half, and are no quieter than half of the mean."""
    count = max(1, 2 * len(here) // BLOCK - 1)
    begins = np.linspace(0, max(0, len(here) - BLOCK), count).astype(int)
    energies = np.array([np.mean(here[begin : begin + BLOCK] ** 2) for begin in begins])
    rests = np.array([np.mean(rest[begin : begin + BLOCK] ** 2) for begin in begins])
    loud = energies >= 0.5 * energies.mean() + noise
    return float((1 - rests[loud] / np.maximum(energies[loud], 1e-3)).min()) if loud.any() else 1.0
