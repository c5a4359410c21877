"""Bytes of an utterance as samples, and how loud they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.samples import RATE_HZ, Loudness, Wideband, decode
from audio.codecs.g711 import alaw_encode, ulaw_encode

TONE = (8000 * np.sin(np.arange(8000) * 0.5)).astype(np.int16)


def test_each_format_is_decoded() -> None:
    assert RATE_HZ == {"PCMU": 8000, "PCMA": 8000, "L16": 16000}
    assert np.abs(decode("PCMU", bytes(ulaw_encode(TONE))).astype(int) - TONE).max() < 300
    assert np.abs(decode("PCMA", bytes(alaw_encode(TONE))).astype(int) - TONE).max() < 300
    assert decode("L16", b"\x01\x00\xff\xff\x07").tolist() == [1, -1]
    assert decode("L16", b"\x01\x00").dtype == np.int16


@given(st.lists(st.integers(0, 700), max_size=12))
def test_wideband_does_not_depend_on_the_cuts(cuts: list[int]) -> None:
    for format, data in (("PCMU", bytes(ulaw_encode(TONE))[:1600]), ("L16", TONE.tobytes()[:1601])):
        whole = Wideband(format).feed(data)  # type: ignore[arg-type]
        stream, at, parts = Wideband(format), 0, []  # type: ignore[arg-type]
        for cut in [*cuts, len(data)]:
            parts.append(stream.feed(data[at : at + cut]))
            at += cut
        assert np.array_equal(np.concatenate(parts), whole[: sum(map(len, parts))])
        assert whole.dtype == np.float32 and len(whole) == {"PCMU": 3200, "L16": 800}[format]


def test_l16_is_scaled_to_one() -> None:
    assert Wideband("L16").feed(np.array([-32768, 16384, 0], "<i2").tobytes()).tolist() == [-1.0, 0.5, 0.0]


def test_loudness_is_that_of_the_loudest_whole_window_so_far() -> None:
    loudness = Loudness("L16")
    quiet, loud = np.full(1600, 33, "<i2").tobytes(), np.full(1600, 16384, "<i2").tobytes()
    loudness.feed(quiet[:1000])
    assert loudness.peak_dbfs(1000) == 0.0, "too little to judge by"
    loudness.feed(quiet[1000:])
    loudness.feed(loud)
    loudness.feed(bytes(3200))
    assert loudness.peak_dbfs(3200) == pytest.approx(-59.94, abs=0.01)
    assert loudness.peak_dbfs(6399) == pytest.approx(-59.94, abs=0.01)
    assert loudness.peak_dbfs(6400) == loudness.peak_dbfs(9600) == pytest.approx(-6.02, abs=0.01)
    silent = Loudness("PCMU")
    silent.feed(b"\xff" * 800)
    assert silent.peak_dbfs(800) == -120.0


def test_no_more_is_measured_than_is_asked_for() -> None:
    quiet, loud = np.full(800, 40, np.int16), np.full(800, 16384, np.int16)
    loudness = Loudness("PCMU", enough_dbfs=-50.0)
    for samples in (quiet, loud, np.full(800, 32000, np.int16)):
        loudness.feed(ulaw_encode(samples))
        loudness.peak_dbfs(0)
    assert loudness.peak_dbfs(800) < -50.0, "the loud window is not heard yet"
    assert loudness.peak_dbfs(1600) == loudness.peak_dbfs(2400) == pytest.approx(-6.02, abs=0.3)
