"""8 → 16 kHz for the engine: the same however the bytes come, flat where a telephone has sound, no images above it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from audio.resample import LAG, Upsampler


@given(st.lists(st.integers(0, 700), max_size=12), st.integers(0, 2**32 - 1))
def test_the_output_does_not_depend_on_the_cuts(sizes: list[int], seed: int) -> None:
    samples = np.random.default_rng(seed).integers(-32768, 32768, sum(sizes)).astype(np.int16)
    whole, pieces = Upsampler().feed(samples), Upsampler()
    parts = [pieces.feed(part) for part in np.split(samples, np.cumsum(sizes)[:-1])] if sizes else []
    assert whole.dtype == np.float32 and len(whole) == 2 * len(samples)
    assert np.array_equal(whole, np.concatenate([np.zeros(0, np.float32), *parts]))


def test_the_response_is_flat_to_the_edge_of_the_telephone_band_and_has_no_images() -> None:
    impulse = np.zeros(4096, np.int16)
    impulse[64] = 32767
    out = Upsampler().feed(impulse)
    assert int(np.argmax(out)) == 128 + LAG
    hertz = np.fft.rfftfreq(len(out), 1 / 16000)
    decibels = 20 * np.log10(np.abs(np.fft.rfft(out)) / 2 + 1e-12)
    assert np.abs(decibels[hertz <= 3400]).max() < 0.1
    assert decibels[hertz >= 4700].max() < -60


def test_full_scale_stays_within_reach() -> None:
    square = np.repeat(np.tile(np.array([32767, -32768], np.int16), 50), 20)
    assert np.abs(Upsampler().feed(square)).max() < 1.3
