"""Where words begin and end: in order, inside the audio, and beside the pauses that the voice detector hears."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.engines.speech import WINDOW_S
from asr.engines.whisper.word_times import EARLY_S, SHORTEST_S, Span, between, place, stretches


def voiced(*runs: tuple[int, int], windows: int = 100) -> np.ndarray:
    """What the detector says of speech in these windows: it is a window late."""
    found = np.zeros(windows, bool)
    for begin, end in runs:
        found[begin + 1 : end + 1] = True
    return found


def spans(begins: list[int], *runs: tuple[int, int]) -> list[Span]:
    """In windows, as the arguments."""
    found = place([begin * WINDOW_S - EARLY_S for begin in begins], voiced(*runs), 100 * WINDOW_S)
    return [(round(begin / WINDOW_S, 3), round(end / WINDOW_S, 3)) for begin, end in found]


@given(
    st.lists(st.floats(0, 31), min_size=1, max_size=40).map(sorted),
    st.lists(st.booleans(), max_size=900),
    st.floats(0.01, 30),
)
def test_words_follow_one_another_inside_the_audio(begins: list[float], heard: list[bool], end_s: float) -> None:
    found = place(begins, np.array(heard, bool), end_s)
    assert len(found) == len(begins)
    edges = [edge for span in found for edge in span]
    assert edges == sorted(edges) and 0 <= edges[0] and edges[-1] <= end_s


@given(st.lists(st.floats(0, 10), max_size=20).map(sorted), st.floats(0, 5), st.floats(0, 5))
def test_every_word_between_two_times_lasts(begins: list[float], low_s: float, more_s: float) -> None:
    found = [low_s, *between(begins, low_s, low_s + more_s), low_s + more_s]
    least_s = min(SHORTEST_S, more_s / (len(begins) + 1))
    assert all(after - before >= least_s - 1e-9 for before, after in zip(found, found[1:], strict=False))


def test_words_begin_and_end_with_the_speech_around_them() -> None:
    assert spans([0, 20, 40], (10, 60)) == [(10, 20), (20, 40), (40, 60)]


@pytest.mark.parametrize("begin", [20, 30, 32, 40, 41])
def test_a_pause_goes_to_the_word_that_begins_in_it_or_near_it(begin: int) -> None:
    assert spans([0, begin, 60], (10, 30), (40, 80)) == [(10, 30), (40, 60), (60, 80)]


def test_a_pause_goes_to_one_word_and_the_nearest() -> None:
    found = spans([0, 25, 42], (10, 30), (40, 80))
    assert found[1] == (40, 42), "attention is early, and seldom late"
    assert found[0] == (10, 30)


def test_a_short_silence_is_no_pause() -> None:
    assert spans([0, 33], (10, 30), (32, 80)) == [(10, 33), (33, 80)]


def test_speech_that_no_word_is_near_belongs_to_none() -> None:
    """A cough before the first word, and a word behind the last one that the text lacks."""
    assert spans([0, 50], (0, 5), (40, 60)) == [(40, 50), (50, 60)]
    assert spans([0, 20], (10, 40), (70, 80)) == [(10, 20), (20, 40)]


def test_without_speech_the_network_alone_is_asked() -> None:
    assert spans([10, 20]) == [(10, 20), (20, 100)]
    assert stretches(voiced(), 3.0) == []


def test_more_words_than_there_is_room_for_share_it() -> None:
    found = place([0.0] * 10, voiced((10, 15)), 100 * WINDOW_S)
    assert {round(end - begin, 6) for begin, end in found} == {round(5 * WINDOW_S / 10, 6)}
