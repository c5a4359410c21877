"""Frames of a file on the timeline of their source: gaps, overlaps, and clocks that start over."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mediaworker.files.timeline import BACK_S, TOLERANCE_S, FramePlace, SourceTimeline

FRAMES = st.lists(
    st.tuples(
        st.one_of(st.none(), st.floats(-100, 1e6), st.floats(0, 20)), st.integers(1, 5000),
        st.sampled_from([8000, 44_100, 48_000]),
    ),
    max_size=40,
)  # fmt: skip


@given(FRAMES)
def test_a_timeline_goes_forward_and_never_by_more_than_a_gap(frames: list[tuple[float | None, int, int]]) -> None:
    timeline, before = SourceTimeline(longest_gap_s=3600.0), 0.0
    for time_s, samples, rate in frames:
        place = timeline.place(time_s, samples, rate)
        assert place.silence >= 0 and 0 <= place.skip <= samples and not (place.silence and place.skip)
        assert place.silence <= 3600.0 * rate + 1
        after = before + (place.silence + samples - place.skip) / rate
        assert timeline.position_s == pytest.approx(after)
        before = timeline.position_s


@given(st.lists(st.floats(0, 5), max_size=30), st.sampled_from([8000, 44_100]), st.integers(100, 4000))
def test_gaps_become_silence_of_their_length(gaps: list[float], rate: int, samples: int) -> None:
    timeline, at, silence = SourceTimeline(longest_gap_s=3600.0), Fraction(0), 0
    for gap in gaps:
        at += Fraction(gap)
        place = timeline.place(float(at), samples, rate)
        silence += place.silence
        at += Fraction(samples, rate)
        # What comes next is where its source says, but for what is too small to be meant.
        assert abs(timeline.position_s - float(at)) <= TOLERANCE_S + 1 / rate
        assert place.skip == 0


def test_a_clock_that_starts_over_is_no_gap() -> None:
    timeline = SourceTimeline(longest_gap_s=3600.0)
    for second in range(20):
        timeline.place(float(second), 8000, 8000)
    assert timeline.place(0.5, 8000, 8000).silence == 0
    assert timeline.jumps == 1 and timeline.position_s == 21.0
    assert timeline.place(1.5, 8000, 8000).silence == 0
    assert timeline.place(4.5, 8000, 8000).silence == 16_000
    assert timeline.place(2.0, 8000, 8000).skip == 8000  # within BACK_S: it overlaps
    assert BACK_S > 3.0


def test_a_frame_without_a_time_follows_the_one_before() -> None:
    timeline = SourceTimeline(longest_gap_s=10.0)
    assert timeline.place(None, 8000, 8000) == FramePlace(0, 0) and timeline.position_s == 1.0
    assert timeline.place(None, 4000, 8000) == FramePlace(0, 0) and timeline.position_s == 1.5
    assert timeline.place(1.5, 8000, 8000) == FramePlace(0, 0)


@pytest.mark.parametrize(
    ("off_s", "place", "jumps"),
    [
        (TOLERANCE_S, FramePlace(0, 0), 0),
        (-TOLERANCE_S, FramePlace(0, 0), 0),
        (TOLERANCE_S + 0.01, FramePlace(50, 0), 0),
        (-TOLERANCE_S - 0.01, FramePlace(0, 50), 0),
        (-2.0, FramePlace(0, 1000), 0),
        (10.0, FramePlace(10_000, 0), 0),
        (10.5, FramePlace(0, 0), 1),
        (-BACK_S, FramePlace(0, 1000), 0),
        (-BACK_S - 0.5, FramePlace(0, 0), 1),
    ],
)
def test_what_is_a_gap_an_overlap_and_a_jump(off_s: float, place: FramePlace, jumps: int) -> None:
    timeline = SourceTimeline(longest_gap_s=10.0)
    timeline.place(0.0, 20_000, 1000)
    assert timeline.place(20.0 + off_s, 1000, 1000) == place
    assert timeline.jumps == jumps
