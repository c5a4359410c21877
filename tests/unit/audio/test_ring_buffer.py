"""The ring planes and the timeline above them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.legs.timeline import LegTimeline
from audio.ring import AHEAD, HISTORY, RING, ROWS, WINDOW, RingBuffer, load, store


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_the_ring_holds_forty_seconds_in_whole_pages() -> None:
    assert RING >= 40 * 8000 and RING % 65536 == 0 and RING % WINDOW == 0
    assert HISTORY >= 31 * 8000 and AHEAD > 5 * 8000


@given(st.integers(0, 10**6), st.binary(max_size=64))
def test_what_is_stored_is_loaded_wherever_it_wraps(start: int, data: bytes) -> None:
    ring = memoryview(bytearray(64))
    store(ring, start, data)
    assert load(ring, start, start + len(data)) == data


@pytest.mark.parametrize("wide", [False, True])
def test_rows_are_separate_and_cleared_rows_are_silent(wide: bool) -> None:
    plane = RingBuffer(wide=wide)
    size = plane.position_bytes
    for row in (0, 1, 2, ROWS - 1):
        store(plane.row(row), (RING - 100) * size, bytes([row + 1]) * 200 * size)
    plane.clear(1)
    assert not plane.windows[1].any()
    for row in (0, 2, ROWS - 1):
        assert load(plane.row(row), (RING - 100) * size, (RING + 100) * size) == bytes([row + 1]) * 200 * size
        assert np.count_nonzero(plane.windows[row]) == 200 * (2 if wide else 1)


def test_memory_is_taken_by_use_and_given_back() -> None:
    before = resident_bytes()
    plane = RingBuffer(wide=True)
    assert resident_bytes() - before < 2**20
    for row in range(32):
        store(plane.row(row), 0, b"\x01" * (RING - 1) * 4)
    used = resident_bytes() - before
    assert used > 30 * RING * 4
    for row in range(32):
        plane.clear(row)
    assert resident_bytes() - before < used // 8


INTERVALS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40), st.booleans(), st.integers(0, 12)), max_size=40)


@given(INTERVALS)
def test_the_timeline_equals_a_list_of_single_positions(claims: list[tuple[int, int, bool, int]]) -> None:
    """Each position is unsent, awaited, received, lost or silent; a claim takes only what is unsent or awaited."""
    timeline = LegTimeline()
    states: list[str] = ["unsent"] * 400
    floor = 0
    for start, size, lost, advance in claims:
        end = timeline.end
        for position in range(end, max(end, start)):
            states[position] = ("lost" if position < floor else "awaited") if lost else "silent"
        expected = set()
        for position in range(start, start + size):
            if position >= floor and states[position] in ("unsent", "awaited"):
                states[position] = "received"
                expected.add(position)
            elif states[position] == "unsent":
                states[position] = "lost"
        parts = timeline.claim(start, start + size, floor, lost=lost)
        assert {p for low, high in parts for p in range(low, high)} == expected
        assert sum(high - low for low, high in parts) == len(expected)
        if advance:
            floor += advance
            timeline.give_up(floor)
            states[:floor] = ["lost" if state == "awaited" else state for state in states[:floor]]
        assert timeline.end == max((p + 1 for p, state in enumerate(states) if state != "unsent"), default=0)
        assert timeline.received == next((p for p, s in enumerate(states) if s == "awaited"), timeline.end)
    assert timeline.lost(0, timeline.end) == states.count("lost")
    assert timeline.lost(50, 120) == states[50:120].count("lost")
    assert timeline.lost(0, timeline.end + 7) == states.count("lost"), "nothing says that what is not there was sent"
    timeline.give_up(timeline.end)
    heard = [p for low, high in timeline.received_spans(30, 350) for p in range(low, high)]
    assert heard == [p for p in range(30, 350) if states[p] == "received"]


def test_the_timeline_forgets_what_no_longer_can_be_read() -> None:
    timeline = LegTimeline()
    for number in range(20_000):
        timeline.claim(number * 40, number * 40 + 20, number * 40, lost=True)
    assert len(timeline.silences) < RING // 40 + 2
    assert timeline.lost(timeline.end - 4000, timeline.end) == 2000
