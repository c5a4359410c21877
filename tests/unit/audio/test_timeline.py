"""The bounds of a leg's timeline, each from both sides."""

from __future__ import annotations

from audio.legs.timeline import MAX_GAPS, MAX_SILENCES, LegTimeline


def fragmented(pieces: int, *, lost: bool) -> LegTimeline:
    """Every other position of 2 * `pieces` has come; the others are awaited (`lost`) or were never sent."""
    timeline = LegTimeline()
    for piece in range(pieces):
        assert timeline.claim(2 * piece + 1, 2 * piece + 2, 0, lost=lost) == [(2 * piece + 1, 2 * piece + 2)]
    return timeline


def test_the_last_gap_is_kept_for_what_is_refused() -> None:
    timeline = fragmented(MAX_GAPS - 1, lost=True)
    end = timeline.end
    assert len(timeline.gaps) == MAX_GAPS - 1
    assert timeline.claim(end + 1, end + 2, 0, lost=True) == []
    assert timeline.gaps[-1] == (end, end + 2)
    assert (len(timeline.gaps), timeline.end) == (MAX_GAPS, end + 2)
    assert timeline.claim(end + 3, end + 4, 0, lost=False) == []
    assert timeline.gaps[-1] == (end, end + 4)
    assert (len(timeline.gaps), timeline.end) == (MAX_GAPS, end + 4)


def test_a_late_packet_that_would_cut_a_gap_in_two_is_refused_at_the_bound() -> None:
    timeline = fragmented(MAX_GAPS - 1, lost=True)
    end = timeline.end
    timeline.claim(end + 5, end + 6, 0, lost=True)
    assert (len(timeline.gaps), timeline.gaps[-1]) == (MAX_GAPS, (end, end + 6))
    assert timeline.claim(end + 2, end + 3, 0, lost=True) == []
    assert timeline.claim(end, end + 1, 0, lost=True) == [(end, end + 1)], "it makes the gap shorter"
    assert timeline.claim(end + 5, end + 6, 0, lost=True) == [(end + 5, end + 6)]
    assert (len(timeline.gaps), timeline.gaps[-1]) == (MAX_GAPS, (end + 1, end + 5))
    assert timeline.claim(0, 1, 0, lost=True) == [(0, 1)]
    assert timeline.claim(end + 2, end + 3, 0, lost=True) == [(end + 2, end + 3)], "there is room again"
    assert timeline.gaps[-2:] == [(end + 1, end + 2), (end + 3, end + 5)]


def test_a_packet_beyond_the_last_silence_is_refused_and_becomes_a_gap() -> None:
    timeline = fragmented(MAX_SILENCES, lost=False)
    end = timeline.end
    assert (len(timeline.silences), timeline.gaps) == (MAX_SILENCES, [])
    assert timeline.claim(end + 1, end + 2, 0, lost=False) == []
    assert (len(timeline.silences), timeline.gaps) == (MAX_SILENCES, [(end, end + 2)])


def test_a_packet_without_a_new_gap_is_taken_at_the_bound() -> None:
    timeline = fragmented(MAX_GAPS - 1, lost=True)
    end = timeline.end
    assert timeline.claim(end, end + 1, 0, lost=True) == [(end, end + 1)]
    assert len(timeline.gaps) == MAX_GAPS - 1


def test_what_is_refused_before_consumption_is_lost() -> None:
    timeline = fragmented(MAX_GAPS - 1, lost=True)
    end = timeline.end
    timeline.claim(end + 1, end + 4, end + 2, lost=False)
    assert timeline.gaps[-1] == (end + 2, end + 4)
    assert timeline.silences == [(end, end + 2, True)]


def test_a_late_packet_gets_what_is_missing_of_its_interval_and_nothing_else() -> None:
    timeline = LegTimeline()
    for start in (10, 30, 50):
        timeline.claim(start, start + 10, 0, lost=True)
    assert timeline.gaps == [(0, 10), (20, 30), (40, 50)]
    assert timeline.claim(10, 20, 0, lost=True) == [], "it came already, and the gaps at its ends are none of it"
    assert timeline.claim(12, 22, 0, lost=True) == [(20, 22)]
    assert timeline.claim(5, 45, 0, lost=True) == [(5, 10), (22, 30), (40, 45)]
    assert timeline.gaps == [(0, 5), (45, 50)]
    assert timeline.claim(46, 48, 0, lost=True) == [(46, 48)]
    assert timeline.gaps == [(0, 5), (45, 46), (48, 50)]
    assert timeline.claim(0, 5, 2, lost=True) == [(2, 5)], "what has been consumed never changes"
    assert (timeline.gaps, timeline.end) == ([(0, 2), (45, 46), (48, 50)], 60)


def test_a_gap_that_ends_where_consumption_is_leaves_nothing_awaited() -> None:
    timeline = LegTimeline()
    timeline.claim(10, 20, 0, lost=True)
    timeline.give_up(9)
    assert timeline.gaps == [(9, 10)]
    timeline.give_up(10)
    assert (timeline.gaps, timeline.received) == ([], 20)
    assert timeline.silences == [(0, 10, True)]


def test_what_is_missing_before_the_beginning_was_never_sent() -> None:
    timeline = LegTimeline()
    timeline.claim(0, 2, 0, lost=True)
    timeline.claim(4, 5, 0, lost=True)
    timeline.claim(10, 20, 0, lost=True)
    timeline.begin = 7
    timeline.give_up(10)
    assert timeline.silences == [(2, 4, False), (5, 7, False), (7, 10, True)]
    assert timeline.lost(0, 20) == 3
