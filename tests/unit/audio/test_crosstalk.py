"""What one leg explains of another: copies at any delay, level and codec, and nothing of somebody else's words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.codecs import g711
from audio.crosstalk import AFTER, BEFORE, LONGEST, LONGEST_LEAD, Likeness, likenesses
from lab.media.speech import speech

SPEECH = np.concatenate([speech("demo-congrats"), speech("demo-instruct")])
OTHERS = speech("conf-adminmenu")


def likeness(own: np.ndarray, other: np.ndarray) -> Likeness:
    (found,) = likenesses(own, other)
    return found


def at(position: int, length: int, samples: np.ndarray = SPEECH) -> np.ndarray:
    return samples[position : position + length]


def on_a_line(samples: np.ndarray) -> np.ndarray:
    return g711.ulaw_decode(g711.ulaw_encode(np.clip(np.round(samples), -32768, 32767).astype(np.int16)))


def around(position: int, length: int) -> np.ndarray:
    return at(position - BEFORE, BEFORE + length + AFTER)


@pytest.mark.parametrize("delay_ms", [-80, -20, 0, 20, 150, 300, 380])
@pytest.mark.parametrize("gain_db", [0, -15, -35])
def test_a_copy_is_explained_whenever_it_comes(delay_ms: int, gain_db: int) -> None:
    begin, length, delay = 16000, 12000, 8 * delay_ms
    copy = on_a_line(at(begin - delay, length) * 10 ** (gain_db / 20))
    found = likeness(copy, around(begin, length))
    assert found.share > 0.8 and found.worst > 0.5
    assert found.delay == pytest.approx(delay, abs=2) and found.gain_db == pytest.approx(gain_db, abs=2)


@pytest.mark.parametrize("change", ["inverted", "muffled", "an echo", "A-law", "noise"])
def test_a_copy_that_a_line_has_changed_is_explained(change: str) -> None:
    begin, length = 20000, 16000
    wide = at(begin - 2400, length + 1600).astype(np.float64) * 0.1
    match change:
        case "inverted":
            copy = -wide
        case "muffled":
            copy = np.convolve(wide, np.hanning(9) / np.hanning(9).sum(), "same")
        case "an echo":
            copy = wide.copy()
            copy[70:] += 0.5 * wide[:-70]
        case "A-law":
            copy = g711.alaw_decode(g711.alaw_encode(wide.astype(np.int16))).astype(np.float64)
        case _:
            copy = wide + np.random.default_rng(1).normal(0, 30, len(wide))
    found = likeness(on_a_line(copy[1600:]), around(begin, length))
    assert found.share > 0.5 and found.worst > 0.25 and found.gain_db < -10
    assert abs(found.delay - 800) < 20


@pytest.mark.parametrize("position", range(0, 40000, 8000))
@pytest.mark.parametrize("length", [4000, 12000])
def test_somebody_elses_words_are_not_explained(position: int, length: int) -> None:
    found = likeness(at(position, length, OTHERS), around(16000, length))
    assert found.share < 0.35


def test_a_word_in_the_midst_of_a_copy_is_found() -> None:
    begin, length = 16000, 24000
    copy = at(begin, length) * 0.05
    copy[8000:12000] += 0.3 * at(4000, 4000, OTHERS)
    found = likeness(on_a_line(copy), around(begin, length))
    assert found.worst < 0.2


def test_a_known_delay_is_looked_at_first_and_the_likeliest_only_if_it_is_another() -> None:
    begin, length = 16000, 4000
    stretch, other = at(begin - 1000, length), around(begin, length)
    (near,) = likenesses(stretch, other, 990)
    assert near == likeness(stretch, other) and near.delay == 1000
    far, likeliest = likenesses(stretch, other, 2000)
    assert abs(far.delay - 2000) <= 64 and likeliest == near


@given(st.integers(0, 2**32), st.sampled_from(["zeros", "loud", "constant", "noise", "one"]), st.integers(1000, 9000))
def test_whatever_is_heard_there_is_an_answer(seed: int, kind: str, length: int) -> None:
    rng = np.random.default_rng(seed)
    sounds = {
        "zeros": np.zeros, "loud": lambda n: np.full(n, -32768), "constant": lambda n: np.full(n, 7),
        "noise": lambda n: rng.integers(-32768, 32768, n), "one": lambda n: np.eye(1, n, n // 2)[0] * 32767,
    }  # fmt: skip
    other = rng.choice(list(sounds))
    found = likeness(sounds[kind](length).astype(np.int16), sounds[other](BEFORE + length + AFTER).astype(np.int16))
    assert np.isfinite([found.share, found.worst, found.gain_db]).all()
    assert LONGEST_LEAD <= found.delay <= LONGEST
