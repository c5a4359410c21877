"""Frames of a file on the timeline of their source: gaps, and clocks that are set back, lie, wrap or drift."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mediaworker.files import timeline as module
from mediaworker.files.timeline import DOUBTED_S, LAST_S, TOLERANCE_S, SourceFrame, SourceTimeline

RATE = 1000
Stated = tuple[float | None, int]
"""What a frame says, and its samples."""


def placed(
    frames: Sequence[Stated], longest_gap_s: float = 3600.0
) -> tuple[list[tuple[int, int]], SourceTimeline[int]]:
    """(silence before it, number) of each frame, and the timeline."""
    timeline: SourceTimeline[int] = SourceTimeline(longest_gap_s=longest_gap_s)
    found: list[tuple[int, int]] = []
    for number, (time_s, samples) in enumerate(frames):
        found += timeline.place(SourceFrame(number, time_s, samples, RATE))
    found += timeline.finish()
    assert [number for _, number in found] == list(range(len(frames))), "each once, in order"
    length = sum(silence for silence, _ in found) + sum(samples for _, samples in frames)
    assert all(silence >= 0 for silence, _ in found)
    assert timeline.position_s == pytest.approx(length / RATE)
    return found, timeline


def starts(frames: Sequence[Stated], **more: float) -> list[float]:
    """Where each begins, in seconds."""
    found, at, begins = placed(frames, **more)[0], 0, []
    for (silence, _), (_, samples) in zip(found, frames, strict=True):
        begins.append((at + silence) / RATE)
        at += silence + samples
    return begins


def run(start_s: float, seconds: float, step_s: float = 0.02) -> list[Stated]:
    """Frames of a clock that is right."""
    return [(start_s + number * step_s, round(step_s * RATE)) for number in range(round(seconds / step_s))]


def silences(frames: Sequence[Stated], **more: float) -> list[int]:
    return [silence for silence, _ in placed(frames, **more)[0] if silence]


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.floats(-100, 1e6), st.floats(0, 20)), st.integers(1, 50_000)), max_size=40
    )
)
def test_whatever_the_clock_says_each_frame_is_there_once(frames: list[Stated]) -> None:
    found, _ = placed(frames)
    assert all(silence <= 3600 * RATE + 1 for silence, _ in found)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=30))
def test_gaps_become_silence_of_their_length(gaps: list[float]) -> None:
    frames: list[Stated] = []
    at = 0.0
    for gap in gaps:
        at += gap
        frames.append((at, 100))
        at += 0.1
    for begin, (time_s, _) in zip(starts(frames), frames, strict=True):
        assert time_s is not None and abs(begin - time_s) <= TOLERANCE_S + 1 / RATE


@given(st.lists(st.floats(0.1, 90), min_size=2, max_size=5), st.lists(st.floats(0, 50), min_size=5, max_size=5))
def test_recordings_one_behind_the_other_are_all_heard(lengths: list[float], begins: list[float]) -> None:
    """`cat` of files, the clock of each set back by anything from a frame to a minute, or ahead."""
    frames: list[Stated] = []
    begun = 0.0
    for length, begin in zip(lengths, begins, strict=False):
        # Backwards: ahead it is a gap.
        begun = min(begin, max(0.0, begun - 0.1)) if frames else 0.0
        frames += run(begun, length)
        begun = frames[-1][0] or 0.0
    assert sum(silences(frames)) == 0


@pytest.mark.parametrize("ahead_s", [0.3, 2.0, 32.768, 3000.0, 5000.0])
@pytest.mark.parametrize("lasts_s", [0.02, 1.0, 30.0])
def test_a_clock_that_lies_for_a_while_is_as_right_behind_it_as_before(ahead_s: float, lasts_s: float) -> None:
    frames = run(0.0, 120.0)
    first, last = 1000, 1000 + round(lasts_s / 0.02)
    for sign in (1, -1):
        lied = [
            ((time_s or 0.0) + sign * ahead_s * (first <= number < last), samples)
            for number, (time_s, samples) in enumerate(frames)
        ]
        found, timeline = placed(lied)
        assert sum(silence for silence, _ in found) == 0 and 1 <= timeline.jumps <= 2


def test_a_gap_that_goes_on_is_believed_and_so_is_a_short_one_before_the_end() -> None:
    frames = run(0.0, 10.0) + run(100.0, 60.0)
    assert silences(frames) == [90 * RATE] and starts(frames)[500] == 100.0
    assert silences(run(0.0, 10.0) + run(40.0, 1.0)) == [30 * RATE]
    assert silences(run(0.0, 10.0) + run(10.0 + LAST_S + 1, 1.0)) == [], "what follows is too little to believe it"
    assert silences(run(0.0, 10.0) + run(4000.0, 60.0), longest_gap_s=3600.0) == []


def test_not_more_is_kept_than_is_needed_to_believe_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline: SourceTimeline[int] = SourceTimeline(longest_gap_s=3600.0, channels=2)
    monkeypatch.setattr(timeline, "_most", 50)
    found = [out for time_s, samples in run(5.0, 0.06) for out in timeline.place(SourceFrame(0, time_s, samples, RATE))]
    assert [silence for silence, _ in found] == [5 * RATE, 0, 0]
    assert module.CONFIRMED_SAMPLES / 2 == SourceTimeline[int](longest_gap_s=1.0, channels=2)._most


def test_gaps_one_behind_the_other_as_of_a_telephone_that_sends_no_silence() -> None:
    frames = [stated for number in range(40) for stated in run(number * 3.0, 1.0)]
    begins = starts(frames)
    assert begins == pytest.approx([time_s for time_s, _ in frames], abs=TOLERANCE_S)


@pytest.mark.parametrize("ppm", [-20_000, -200, 200, 20_000])
def test_a_clock_that_drifts_costs_no_sample(ppm: int) -> None:
    frames = [(time_s * (1 + ppm / 1e6), samples) for time_s, samples in run(0.0, 100.0) if time_s is not None]
    ahead_s = 100.0 * ppm / 1e6
    assert sum(silences(frames)) / RATE == pytest.approx(max(0.0, ahead_s), abs=2 * TOLERANCE_S)


def test_what_had_no_room_shortens_the_next_gap() -> None:
    frames = [*run(0.0, 1.0, 1.0), *run(0.5, 1.0, 1.0), (4.0, 1000)]
    assert starts(frames) == [0.0, 1.0, 4.0]


def test_a_frame_without_a_time_follows_the_one_before() -> None:
    assert silences([(None, 8000), (None, 4000), (12.0, 8000), (None, 100), (20.1, 50)]) == []
    assert starts([(0.0, 100), (5.0, 100), (None, 100), (5.2, 100)]) == [0.0, 5.0, 5.1, 5.2]


def test_a_clock_in_disorder_keeps_the_order_of_the_frames() -> None:
    random = Random(4)
    for _ in range(200):
        times = [random.choice([number * 0.02, random.uniform(0, 60), None]) for number in range(100)]
        placed([(time_s, 20) for time_s in times])


@pytest.mark.parametrize(
    ("off_s", "silence", "jumps"),
    [
        (TOLERANCE_S, 0, 0),
        (-TOLERANCE_S, 0, 0),
        (TOLERANCE_S + 0.01, 50, 0),
        (DOUBTED_S, 200, 0),
        (DOUBTED_S + 0.1, 300, 0),
    ],
)
def test_what_is_a_gap(off_s: float, silence: int, jumps: int) -> None:
    found, timeline = placed([(0.0, 20_000), (20.0 + off_s, 1000)])
    assert [each for each, _ in found] == [0, silence] and timeline.jumps == jumps
