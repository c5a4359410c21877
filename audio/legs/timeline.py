"""The timeline of a leg: which positions have been received, which are awaited, and which will stay silent.

Everything before `end` is received, except `gaps` (still awaited) and `silences` (given up or never sent). A packet
claims its interval and gets the parts of it that must be stored: received audio is never overwritten, and consumed
audio never changes.

Both lists are bounded: the loss of every other packet of 10 ms stays well below the bounds. A stream with more pieces
is no audio: the packet that would exceed the bound is refused, and its interval becomes part of the gap before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from audio.leg_table import Cell, LegRow
from audio.ring import RING

Span = tuple[int, int]
MAX_GAPS = 1024
MAX_SILENCES = 4096
"""The most silences within the remembered 41 s."""


class LegTimeline:
    __slots__ = ("begin", "gaps", "place", "silences")

    end = Cell[int]("end")
    """The position after the latest received one."""

    def __init__(self, place: LegRow | None = None) -> None:
        self.place = place or LegRow()
        self.gaps: list[Span] = []
        """The awaited spans: disjoint, ascending, before `end`."""
        self.silences: list[tuple[int, int, bool]] = []
        """(start, stop, lost): the spans before `end` that read as silence, ascending; not lost if none was sent."""
        self.begin = 0
        """The position before which gaps were never sent."""

    @property
    def received(self) -> int:
        """The position up to which no audio is awaited."""
        return self.gaps[0][0] if self.gaps else self.end

    def claim(self, start: int, stop: int, floor: int, *, lost: bool) -> list[Span]:
        """The parts of [start, stop) that must be stored; `floor` is the position up to which audio was consumed.

        `lost`: the audio skipped between `end` and `start` was sent and may still arrive; otherwise it never existed.
        """
        parts: list[Span] = []
        if start < self.end and self.gaps:
            parts = self._fill(start, stop, floor)
        if stop <= self.end:
            return parts
        fresh = max(start, self.end)
        if fresh > self.end:
            self._forget()
            # The last gap is reserved for refused audio.
            if len(self.gaps) >= MAX_GAPS - 1 or len(self.silences) >= MAX_SILENCES:
                self._skip(self.end, stop, floor, True)
                self.end = stop
                return parts
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
            start = max(start, floor)
            if self.gaps and self.gaps[-1][1] == start:
                start = self.gaps.pop()[0]
            self.gaps.append((start, stop))

    def _fill(self, start: int, stop: int, floor: int) -> list[Span]:
        parts: list[Span] = []
        left: list[Span] = []
        begin = index = max(0, bisect_left(self.gaps, (start,)) - 1)
        while index < len(self.gaps) and self.gaps[index][0] < stop:
            low, high = self.gaps[index]
            index += 1
            first, last = max(low, start, floor), min(high, stop)
            if first >= last or (low < first and last < high and len(self.gaps) >= MAX_GAPS):
                left.append((low, high))
                continue
            parts.append((first, last))
            if low < first:
                left.append((low, first))
            if last < high:
                left.append((last, high))
        self.gaps[begin:index] = left
        return parts

    def give_up(self, floor: int) -> None:
        """Give up gaps before `floor`, up to which audio has been consumed."""
        left = []
        for low, high in self.gaps:
            if low < floor:
                self._give_up(low, min(high, floor))
            if high > floor:
                left.append((max(low, floor), high))
        self.gaps = left

    def _give_up(self, start: int, stop: int) -> None:
        if start < self.begin:
            self._silence(start, min(stop, self.begin), False)
        if stop > self.begin:
            self._silence(max(start, self.begin), stop, True)

    def _forget(self) -> None:
        old = 0
        while old < len(self.silences) and self.silences[old][1] < self.end - RING:
            old += 1
        del self.silences[:old]

    def _silence(self, start: int, stop: int, lost: bool) -> None:
        self._forget()
        silences = self.silences
        index = bisect_left(silences, (start,))
        if index and silences[index - 1][1:] == (start, lost):
            index -= 1
            start = silences.pop(index)[0]
        silences.insert(index, (start, stop, lost))

    def lost(self, start: int, stop: int) -> int:
        """The number of positions in [start, stop) that were lost, as later audio has shown."""
        return sum(min(high, stop) - max(low, start) for low, high, lost in self._within(start, stop) if lost)

    def _within(self, start: int, stop: int) -> Iterator[tuple[int, int, bool]]:
        """The silences that reach into [start, stop)."""
        for index in range(max(0, bisect_left(self.silences, (start,)) - 1), len(self.silences)):
            silence = self.silences[index]
            if silence[0] >= stop:
                return
            if silence[1] > start:
                yield silence

    def received_spans(self, start: int, stop: int) -> Iterator[Span]:
        """The received parts of [start, stop), ascending; call `give_up(stop)` first."""
        stop = min(stop, self.end)
        for low, high, _ in self._within(start, stop):
            if low > start:
                yield start, low
            start = max(start, high)
        if start < stop:
            yield start, stop
