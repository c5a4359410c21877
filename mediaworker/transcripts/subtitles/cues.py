"""A long text as subtitles that can be read: cues of two short lines, cut where the speaker paused. Pure.

Every character of the text is in exactly one cue, but for the spaces around a cut. The cuts are those that together
cost least, found by a dynamic programme over the places where a cut may be.

The numbers are those of the Netflix English Template Timed Text Style Guide: 42 characters, 2 lines, 7 s, 2 frames
between subtitles, and for adults 17 characters a second; its shortest is 5/6 s, here 1 s. The 160 to 180 words a minute
of the BBC Subtitle Guidelines are about the same speed. A wide character counts as two, as it does in a line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from mediaworker.events.schema import Word
from mediaworker.transcripts.subtitles.places import BreakPlace, atoms, columns
from mediaworker.transcripts.subtitles.times import SILENCE_MS, Timed, timed

LINE = 42
"""Columns."""
LINES = 2
LONGEST_MS = 7000
SHORTEST_MS = 1000
"""A cue stays so long if the next one lets it."""
SPEED = 17
"""Columns a second, spaces too: a cue that is said faster stays longer, if the next one lets it."""
GAP_MS = 80
"""Two frames without text, so that the eye sees the change; where there is room."""
SHORT = 10
"""Columns. A line or a cue with no more, cut off its sentence, is an orphan."""

# Costs. What is more than the sum of some others is avoided at the price of these.
_CUE = 20
"""Fewer are better."""
_FULL = 40
"""Of a cue without room left, by the square: cues of about the same length cost less."""
_CUT = dict(zip(BreakPlace, (800, 100, 40, 15, 8, 0), strict=True))
"""From a part of a word to a whole sentence."""
_ORPHAN = 500
_SILENCE = 150
"""A cue with a long silence in it."""
_HASTE = 100
"""Of a cue that needs twice the time there is, by the square and up to thrice: that evens the speed of cues out."""
_LATE = 0.06
"""Each millisecond said behind the longest that a cue may stay, up to `_LATEST`: less than two orphans."""
_LATEST = 600
_LINE_CUT = dict(zip(BreakPlace, (800, 42, 21, 2, 1, 0), strict=True))
"""In columns that one line may be longer than the other."""


@dataclass(frozen=True, slots=True)
class Cue:
    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


def cues(
    text: str, words: Sequence[Word], start_ms: int, end_ms: int, *, indent: int = 0, until_ms: int | None = None
) -> list[Cue]:
    """In order, without overlap, none before `start_ms`; none only for a text without anything to show.

    Args:
        words: of the text, in order. Without, or with others, times are shared out between `start_ms` and `end_ms`.
        indent: columns of the first line that something else takes: half of it at most.
        until_ms: where the next one on the screen begins; nothing stays longer. One that leaves no room is taken as
            a millisecond for each cue.
    """
    text = " ".join(text.split())
    first_line = LINE - min(max(0, indent), LINE // 2)
    found = timed(text, atoms(text, line=LINE, first_line=first_line), words, start_ms, end_ms, until_ms)
    if not found:
        return []
    programme = _Programme(text, found, first_line, until_ms)
    cuts = programme.cuts()
    begins = _apart([found[cut].start_ms for cut in cuts[:-1]], start_ms, until_ms)
    shown = []
    for at, (first, behind) in enumerate(pairwise(cuts)):
        next_ms = begins[at + 1] if behind < len(found) else until_ms
        stays_ms = _stays(begins[at], found[behind - 1].end_ms, programme.needs_ms(first, behind), next_ms)
        shown.append(Cue(begins[at], begins[at] + stays_ms, programme.lines(first, behind)))
    return shown


def _apart(begins: list[int], start_ms: int, until_ms: int | None) -> list[int]:
    """Each a millisecond behind the last at least: a cue of no length is shown by no player."""
    apart: list[int] = []
    for begin in begins:
        apart.append(max(begin, apart[-1] + 1) if apart else max(begin, start_ms))
    if until_ms is None:
        return apart
    last_ms = max(until_ms, start_ms + len(apart))
    return [min(begin, last_ms - left) for begin, left in zip(apart, range(len(apart), 0, -1), strict=True)]


def _stays(begin_ms: int, said_ms: int, needs_ms: int, next_ms: int | None) -> int:
    """For how long: as said, longer where it takes longer to read."""
    stays_ms = min(max(said_ms - begin_ms, needs_ms), LONGEST_MS)
    if next_ms is None:
        return stays_ms
    room_ms = max(1, next_ms - begin_ms)
    return min(stays_ms, room_ms - GAP_MS if room_ms >= SHORTEST_MS + GAP_MS else room_ms)


class _Programme:
    """Atoms are numbered; a cue is a pair: its first, and the one behind its last."""

    def __init__(self, text: str, found: list[Timed], first_line: int, until_ms: int | None) -> None:
        self._text, self._found, self._first_line, self._until_ms = text, found, first_line, until_ms
        self._before = list(accumulate(map(columns, text), initial=0))
        self._lefts = [self._before[atom.start] for atom in found]
        self._rights = [self._before[atom.end] for atom in found]
        long = (after.start_ms - atom.end_ms >= SILENCE_MS for atom, after in pairwise(found))
        self._silences = list(accumulate(long, initial=0))

    def cuts(self) -> list[int]:
        """The first atom of every cue, and the number of atoms."""
        count = len(self._found)
        best = [0.0] * (count + 1)
        nexts = [0] * count
        for first in reversed(range(count)):
            reach = self._fits(self._fits(first, self._room(first)), LINE)
            best[first], nexts[first] = min(
                (self._cost(first, behind) + best[behind], behind) for behind in range(first + 1, reach + 1)
            )
        cuts = [0]
        while cuts[-1] < count:
            cuts.append(nexts[cuts[-1]])
        return cuts

    def needs_ms(self, first: int, behind: int) -> int:
        return max(SHORTEST_MS, -(-1000 * self._columns(first, behind) // SPEED))

    def lines(self, first: int, behind: int) -> tuple[str, ...]:
        """One if it fits; else two, cut where it is good and so that they are of about the same length."""
        room = self._room(first)
        if self._columns(first, behind) <= room:
            return (self._said(first, behind),)
        cut = min(range(first + 1, behind), key=lambda cut: self._line_cost(first, cut, behind, room))
        return self._said(first, cut), self._said(cut, behind)

    def _cost(self, first: int, behind: int) -> float:
        columns, last = self._columns(first, behind), self._found[behind - 1]
        cost = _CUE + _FULL * (columns / (LINE * LINES)) ** 2
        if behind < len(self._found):
            cost += _CUT[last.place]
        if columns <= SHORT and (self._cuts_sentence(first) or self._cuts_sentence(behind)):
            cost += _ORPHAN
        cost += _SILENCE * (self._silences[behind - 1] - self._silences[first])
        begin_ms = self._found[first].start_ms
        cost += min(_LATEST, _LATE * max(0, last.end_ms - begin_ms - LONGEST_MS))
        next_ms = self._found[behind].start_ms if behind < len(self._found) else self._until_ms
        if next_ms is not None:
            needs_ms = self.needs_ms(first, behind)
            haste = needs_ms / max(1, _stays(begin_ms, last.end_ms, needs_ms, next_ms))
            cost += _HASTE * (min(haste, 3) - 1) ** 2 if haste > 1 else 0
        return cost

    def _cuts_sentence(self, at: int) -> bool:
        return 0 < at < len(self._found) and self._found[at - 1].place < BreakPlace.END

    def _line_cost(self, first: int, cut: int, behind: int, room: int) -> float:
        upper, lower = self._columns(first, cut), self._columns(cut, behind)
        if upper > room or lower > LINE:
            return float("inf")
        orphan = min(upper, lower) <= SHORT and self._cuts_sentence(cut)
        return abs(upper + LINE - room - lower) + _LINE_CUT[self._found[cut - 1].place] + _ORPHAN * orphan

    def _room(self, first: int) -> int:
        return LINE if first else self._first_line

    def _fits(self, first: int, room: int) -> int:
        """The atom behind the last that fits a line."""
        return bisect_right(self._rights, self._lefts[first] + room) if first < len(self._found) else first

    def _columns(self, first: int, behind: int) -> int:
        return self._rights[behind - 1] - self._lefts[first]

    def _said(self, first: int, behind: int) -> str:
        return self._text[self._found[first].start : self._found[behind - 1].end]
