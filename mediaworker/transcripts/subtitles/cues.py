"""Splits a long text into readable subtitles: cues of two short lines, cut where the speaker paused. No I/O.

Every character of the text is in exactly one cue, except the spaces around a cut. Among all places where a cut is
allowed, a dynamic programme finds the cuts with the lowest total cost.

The numbers are those of the Netflix English Template Timed Text Style Guide: 42 characters, 2 lines, 7 s, 2 frames
between subtitles, and for adults 17 characters a second. Its shortest cue is 5/6 s; here it is 1 s. The 160 to 180
words a minute of the BBC Subtitle Guidelines are about the same speed. A wide character counts as two columns.
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
"""The most columns of a line."""
LINES = 2
LONGEST_MS = 7000
SHORTEST_MS = 1000
"""The shortest time that a cue is shown, unless the next cue begins earlier."""
SPEED = 17
"""The reading speed in columns per second, spaces included. A cue that is spoken faster is shown for longer, unless the
next cue begins."""
GAP_MS = 80
"""The gap between two cues where there is room: two frames, so that the viewer notices the change."""
SHORT = 10
"""A line or a cue of at most this many columns that is cut off its sentence is an orphan."""

# Costs. A fault that costs more than several others together is avoided at the price of those.
_CUE = 20
"""The cost of each cue: fewer cues are better."""
_FULL = 40
"""The cost of a full cue. It grows with the square of the length, so that cues of about the same length cost less."""
_CUT = dict(zip(BreakPlace, (800, 100, 40, 15, 8, 0), strict=True))
"""The cost of ending a cue at a place, from the inside of a word to the end of a sentence."""
_ORPHAN = 500
_SILENCE = 150
"""The cost of a long silence within a cue."""
_HASTE = 100
"""The cost of a cue that needs twice the time that there is. It grows with the square, up to three times the time, so
that the speeds of cues become similar."""
_LATE = 0.06
"""The cost of each millisecond of speech after the longest time that a cue may be shown, up to `_LATEST`, which is less
than that of two orphans."""
_LATEST = 600
_LINE_CUT = dict(zip(BreakPlace, (800, 42, 21, 2, 1, 0), strict=True))
"""The cost of a line break at a place, in columns by which one line may be longer than the other to avoid it."""


@dataclass(frozen=True, slots=True)
class Cue:
    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


def cues(
    text: str, words: Sequence[Word], start_ms: int, end_ms: int, *, indent: int = 0, until_ms: int | None = None
) -> list[Cue]:
    """Return the cues of a text in order, without overlap and none before `start_ms`. The list is empty only for a text
    without visible characters.

    Args:
        words: the words of the text in order. Without words, or with those of another text, the time between
            `start_ms` and `end_ms` is shared out in proportion to the length of the parts.
        indent: columns of the first line that the speaker's name occupies; at most half a line counts.
        until_ms: the start of the next text on the screen, at which the last cue ends. If it leaves no time, each cue
            has one millisecond.
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
    """Return the starts with at least one millisecond between them: players do not show a cue without duration."""
    apart: list[int] = []
    for begin in begins:
        apart.append(max(begin, apart[-1] + 1) if apart else max(begin, start_ms))
    if until_ms is None:
        return apart
    last_ms = max(until_ms, start_ms + len(apart))
    return [min(begin, last_ms - left) for begin, left in zip(apart, range(len(apart), 0, -1), strict=True)]


def _stays(begin_ms: int, said_ms: int, needs_ms: int, next_ms: int | None) -> int:
    """Return how long a cue is shown: as long as its speech, or longer where reading needs it."""
    stays_ms = min(max(said_ms - begin_ms, needs_ms), LONGEST_MS)
    if next_ms is None:
        return stays_ms
    room_ms = max(1, next_ms - begin_ms)
    return min(stays_ms, room_ms - GAP_MS if room_ms >= SHORTEST_MS + GAP_MS else room_ms)


class _Programme:
    """The dynamic programme. Atoms are numbered, and a cue is a pair: its first atom, and the atom after its last."""

    def __init__(self, text: str, found: list[Timed], first_line: int, until_ms: int | None) -> None:
        self._text, self._found, self._first_line, self._until_ms = text, found, first_line, until_ms
        self._before = list(accumulate(map(columns, text), initial=0))
        self._lefts = [self._before[atom.start] for atom in found]
        self._rights = [self._before[atom.end] for atom in found]
        long = (after.start_ms - atom.end_ms >= SILENCE_MS for atom, after in pairwise(found))
        self._silences = list(accumulate(long, initial=0))

    def cuts(self) -> list[int]:
        """Return the first atom of every cue, followed by the number of atoms."""
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
        """Return a single line if the cue fits, or else two lines of similar length, cut at the best place."""
        room = self._room(first)
        if self._columns(first, behind) <= room:
            return (self._text_of(first, behind),)
        cut = min(range(first + 1, behind), key=lambda cut: self._line_cost(first, cut, behind, room))
        return self._text_of(first, cut), self._text_of(cut, behind)

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
        """Return the atom after the last one that fits into a line."""
        return bisect_right(self._rights, self._lefts[first] + room) if first < len(self._found) else first

    def _columns(self, first: int, behind: int) -> int:
        return self._rights[behind - 1] - self._lefts[first]

    def _text_of(self, first: int, behind: int) -> str:
        return self._text[self._found[first].start : self._found[behind - 1].end]
