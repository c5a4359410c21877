"""Which positions of a leg have come, which are missing, and which will stay silent.

Everything before `end` is received but for `gaps` (still awaited) and `silences` (given up or never sent). A packet
claims its interval and gets back the parts of it that are still wanted: what came already is never overwritten, and
what has been consumed never changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from audio.plane import RING
from audio.table import Cell, Place

Span = tuple[int, int]


class Timeline:
    __slots__ = ("gaps", "place", "silences")

    end = Cell[int]("end")
    """Past the latest received position."""

    def __init__(self, place: Place | None = None) -> None:
        self.place = place or Place()
        self.gaps: list[Span] = []
        """Awaited: disjoint, ascending, before `end`."""
        self.silences: list[tuple[int, int, bool]] = []
        """(start, stop, lost): stretches before `end` that read as silence; not lost: the sender was silent."""

    @property
    def received(self) -> int:
        """Up to here there is nothing left to wait for."""
        return self.gaps[0][0] if self.gaps else self.end

    def claim(self, start: int, stop: int, floor: int, *, lost: bool) -> list[Span]:
        """The parts of [start, stop) to store; `floor` is where consumption has got to.

        `lost`: what is skipped between `end` and `start` was sent and may still come; otherwise it never existed.
        """
        parts: list[Span] = []
        if start < self.end and self.gaps:
            parts = self._fill(start, stop, floor)
        if stop <= self.end:
            return parts
        fresh = max(start, self.end)
        if fresh > self.end:
            self._skip(self.end, fresh, floor, lost)
        if fresh < floor:
            self._silence(fresh, min(floor, stop), True)
        if stop > floor:
            parts.append((max(fresh, floor), stop))
        self.end = stop
        return parts

    def _skip(self, start: int, stop: int, floor: int, lost: bool) -> None:
        if not lost:
            self._silence(start, stop, False)
            return
        if start < floor:
            self._silence(start, min(stop, floor), True)
        if stop > floor:
            self.gaps.append((max(start, floor), stop))

    def _fill(self, start: int, stop: int, floor: int) -> list[Span]:
        parts, left = [], []
        for low, high in self.gaps:
            first, last = max(low, start, floor), min(high, stop)
            if first >= last:
                left.append((low, high))
                continue
            parts.append((first, last))
            if low < first:
                left.append((low, first))
            if last < high:
                left.append((last, high))
        self.gaps = left
        return parts

    def give_up(self, floor: int) -> None:
        """Consumption is at `floor`: gaps before it are lost."""
        left = []
        for low, high in self.gaps:
            if low < floor:
                self._silence(low, min(high, floor), True)
            if high > floor:
                left.append((max(low, floor), high))
        self.gaps = left

    def _silence(self, start: int, stop: int, lost: bool) -> None:
        while self.silences and self.silences[0][1] < self.end - RING:
            del self.silences[0]
        if self.silences and self.silences[-1][1:] == (start, lost):
            start = self.silences.pop()[0]
        self.silences.append((start, stop, lost))

    def lost(self, start: int, stop: int, *, trailing: bool) -> int:
        """Positions of [start, stop) that were lost; with `trailing` also those after `end`, where nothing came."""
        total = sum(max(0, min(high, stop) - max(low, start)) for low, high, lost in self.silences if lost)
        return total + (max(0, stop - max(start, self.end)) if trailing else 0)

    def heard(self, start: int, stop: int) -> Iterator[Span]:
        """The received parts of [start, stop), ascending; call `give_up(stop)` first."""
        stop = min(stop, self.end)
        for low, high, _ in sorted(span for span in self.silences if span[1] > start and span[0] < stop):
            if low > start:
                yield start, low
            start = max(start, high)
        if start < stop:
            yield start, stop
