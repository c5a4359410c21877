"""Where chunks of a stream belong when their positions are rounded, leave something out, or come out of order."""

from __future__ import annotations

from audio.legs.chunks import ADOPT, SNAP, ChunkClock
from audio.legs.timeline import LegTimeline

SIZE = 160


class Clock:
    """A chunk clock with its timeline: `take` says where a chunk came to lie."""

    def __init__(self) -> None:
        self.clock, self.timeline = ChunkClock(), LegTimeline()

    def take(self, position: int, size: int = SIZE, *, silent: bool = False) -> int:
        start = self.clock.place(position, size, self.timeline, silent=silent)
        lost = start - self.timeline.end >= size // 2
        self.timeline.claim(start, start + size, 0, lost=lost and self.clock.packets > 0)
        self.clock.packets += 1
        return start


def test_the_first_chunk_lies_where_it_says() -> None:
    assert Clock().take(1234) == 1234


def test_a_position_that_is_rounded_follows_the_audio_before() -> None:
    clock = Clock()
    assert [clock.take(each) for each in (0, 168, 315, 488)] == [0, 160, 320, 480]
    assert not clock.clock.exact
    exact = Clock()
    assert not exact.clock.exact
    assert [exact.take(each) for each in (0, 160)] == [0, 160] and exact.clock.exact


def test_what_is_left_out_is_a_whole_number_of_chunks() -> None:
    clock = Clock()
    clock.take(0)
    assert clock.take(160 + 3 * SIZE + 30) == 160 + 3 * SIZE
    assert clock.take(160 + SIZE + 20) == 160 + SIZE, "into the gap, behind its beginning"
    assert clock.take(160 + 2 * SIZE - 20) == 160 + 2 * SIZE


def test_a_position_that_fits_nowhere_is_taken_as_it_is() -> None:
    clock = Clock()
    clock.take(0, 8000)
    assert clock.take(8000 + 3000, 8000) == 11_000, "further off than a position is corrected"
    fresh = Clock()
    fresh.take(0, 8000)
    assert fresh.take(8000 + SNAP, 8000) == 8000 and fresh.take(100, 8000) == 100


def test_a_silent_leg_is_moved_when_positions_are_off_on_average() -> None:
    clock, at = Clock(), 0
    clock.take(0)
    for _ in range(200):
        at += SIZE
        assert clock.take(at + ADOPT + 10) == at, "while somebody speaks nothing is moved"
    moved = clock.take(at + SIZE + ADOPT + 10, silent=True)
    assert moved - (at + SIZE) in range(ADOPT, ADOPT + 11)
    assert clock.clock.exact, "and counted from there"
