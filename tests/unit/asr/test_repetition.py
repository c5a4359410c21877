"""Loops at the end of an answer: what is one, and what is left of it."""

from __future__ import annotations

import pytest

from asr.repetition import LONGEST, TIMES, is_loop, once, pattern


@pytest.mark.parametrize("size", [2, 3, LONGEST])
def test_a_pattern_said_often_enough_is_a_loop(size: int) -> None:
    said = list(range(size))
    assert pattern([99, *said * TIMES]) == said and is_loop(said * TIMES)
    assert not is_loop([99, *(said * TIMES)[1:]]), "one token short"
    assert not is_loop([*said * TIMES, 99]), "it has gone on"
    assert once([98, 99, *said * TIMES]) == [98, 99, *said]


def test_a_single_token_may_be_said_twice_as_often() -> None:
    assert not is_loop([7] * (2 * TIMES - 1))
    assert pattern([7] * 2 * TIMES) == [7] and once([1, *[7] * 2 * TIMES]) == [1, 7]


def test_longer_patterns_are_not_looked_for() -> None:
    assert not is_loop(list(range(LONGEST + 1)) * TIMES)
    assert not is_loop([]) and once([]) == [] and once([1, 2, 3]) == [1, 2, 3]


def test_what_stands_before_the_loop_and_is_like_it_goes_too() -> None:
    assert once([5, 1, 2, *[1, 2] * TIMES]) == [5, 1, 2]
