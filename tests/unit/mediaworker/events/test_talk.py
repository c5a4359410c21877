"""Talk totals against a millisecond-by-millisecond count, and where words lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.utterance import TimedWord
from mediaworker.events import talk

lengths = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=6)


def segments(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    spans, at = [], 0
    for gap, length in gaps:
        spans.append((at + gap, at + gap + length))
        at += gap + length
    return spans


@given(lengths, lengths, st.integers(0, 50))
def test_totals_equal_a_count(agent: list[tuple[int, int]], customer: list[tuple[int, int]], rest: int) -> None:
    legs = {"agent": segments(agent), "customer": segments(customer)}
    duration = max([end for spans in legs.values() for _, end in spans], default=0) + rest
    active = [[any(start <= ms < end for start, end in spans) for spans in legs.values()] for ms in range(duration)]
    got = talk.totals(legs, duration)
    assert got.talk_ms == {"agent": sum(a for a, _ in active), "customer": sum(c for _, c in active)}
    assert got.overtalk_ms == sum(a and c for a, c in active)
    assert got.silence_ms == sum(not (a or c) for a, c in active)
    assert sum(got.talk_ratio.values()) in (0.0,) or abs(sum(got.talk_ratio.values()) - 1) < 0.002


@given(lengths, lengths, st.lists(st.integers(0, 300), max_size=5))
def test_totals_do_not_depend_on_when_the_past_is_summed_up(
    agent: list[tuple[int, int]], customer: list[tuple[int, int]], cuts: list[int]
) -> None:
    legs = {"agent": segments(agent), "customer": segments(customer)}
    expected = talk.totals(legs, 1000)
    past = talk.Sums()
    for at_ms in sorted(cuts):
        past.add({leg: talk.take_before(spans, at_ms) for leg, spans in legs.items()})
    assert talk.totals(legs, 1000, past=past) == expected


def test_hold_is_neither_talk_nor_silence() -> None:
    assert talk.totals({"main": [(0, 1000)]}, 5000, hold_ms=3000).silence_ms == 1000


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "found"),
    [(100, 200, (1000, 1100)), (0, 50, (1000, 1000)), (500, 700, (1400, 1600)), (1000, 1500, (1900, 2000))],
)
def test_a_word_lies_within_its_speech(start_ms: int, end_ms: int, found: tuple[int, int]) -> None:
    (word,) = talk.placed([TimedWord("x", start_ms, end_ms, 1.0)], 900, 1000, 2000)
    assert (word.start_ms, word.end_ms) == found
    (word,) = talk.placed([TimedWord("x", start_ms, end_ms, 1.0)], 900, 1000, 800)
    assert word.start_ms == word.end_ms == 1000, "speech that ends before it begins"
