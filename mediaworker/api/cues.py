"""A long final as subtitles that can be read: cues of two short lines, cut where the speaker paused. Pure.

Cut by the times of its words; every character of the text is in exactly one cue, but for the spaces around a cut.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from mediaworker.events.schema import Word

LINE = 42
"""Columns; a wide character takes two."""
LINES = 2
LONGEST_MS = 7000
SHORTEST_MS = 1000
"""A cue stays so long if the next one lets it."""
PAUSE_MS = 300
"""A silence between words that is worth a cut."""
_SENTENCE, _CLAUSE = ".?!…。？！", ",;:，、；：—"


@dataclass(frozen=True, slots=True)
class Cue:
    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A word with the punctuation at it, and the space behind it."""

    text: str
    start_ms: int
    end_ms: int
    width: int
    bare: int
    """Width without the space."""
    rank: int
    """How good a place to cut is behind it."""


def cues(text: str, words: Sequence[Word], *, indent: int = 0) -> list[Cue]:
    """`text`: with single spaces; `indent`: columns of the first line that something else takes. Empty when the words
    are not those of the text."""
    pieces = _pieces(text, words) if words else []
    found: list[Cue] = []
    while pieces:
        count = _fitting(pieces, indent)
        if count < len(pieces):
            count = _best_cut(pieces[: count + 1])
        part, pieces = pieces[:count], pieces[count:]
        end_ms = max(part[-1].end_ms, part[0].start_ms + SHORTEST_MS)
        if pieces:
            end_ms = max(part[-1].end_ms, min(end_ms, pieces[0].start_ms))
        found.append(Cue(part[0].start_ms, end_ms, _lines(part, indent)))
    return found


def _pieces(text: str, words: Sequence[Word]) -> list[_Piece]:
    starts: list[int] = []
    at = 0
    for word in words:
        begins = text.find(word.word, at)
        if begins < 0:
            return []
        starts.append(_opening(text, at, begins) if starts else 0)
        at = begins + len(word.word)
    ends = [*starts[1:], len(text)]
    pieces = []
    for start, end, word, after in zip(starts, ends, words, [*words[1:], None], strict=True):
        said = text[start:end]
        bare = said.rstrip()
        pause_ms = after.start_ms - word.end_ms if after is not None else 0
        pieces.append(_Piece(said, word.start_ms, word.end_ms, width(said), width(bare), _rank(bare, pause_ms)))
    return pieces


def _rank(said: str, pause_ms: int) -> int:
    """Behind a sentence is better than in a pause, and that is better than behind a comma."""
    last = said.rstrip("\"'”’»)）」』")[-1:]
    if last and last in _SENTENCE:
        return 3
    if pause_ms >= PAUSE_MS:
        return 2
    return int(bool(last) and last in _CLAUSE)


def _opening(text: str, after: int, begins: int) -> int:
    """Where a word's own punctuation begins: behind the last space, or at a bracket or quote that opens."""
    gap = text[after:begins]
    space = max((at + 1 for at, character in enumerate(gap) if character.isspace()), default=0)
    if space:
        return after + space
    return next((after + at for at, each in enumerate(gap) if unicodedata.category(each) in ("Ps", "Pi")), begins)


def _fitting(pieces: Sequence[_Piece], indent: int) -> int:
    """How many of them one cue holds: at least one, however long."""
    line, used, room = 1, 0, LINE - indent
    for count, piece in enumerate(pieces):
        if used and used + piece.bare > room:
            line, used, room = line + 1, 0, LINE
        if count and (line > LINES or piece.end_ms - pieces[0].start_ms > LONGEST_MS):
            return count
        used += piece.width
    return len(pieces)


def _best_cut(pieces: Sequence[_Piece]) -> int:
    """The best place to cut before the last of these pieces; the later the better, and not before a third of them."""
    return max(range(max(1, (len(pieces) - 1) // 3), len(pieces)), key=lambda cut: (pieces[cut - 1].rank, cut))


def _lines(pieces: Sequence[_Piece], indent: int) -> tuple[str, ...]:
    """One if it fits; else two, cut at punctuation or else so that they are of about the same length."""
    whole = sum(piece.width for piece in pieces[:-1]) + pieces[-1].bare
    if len(pieces) == 1 or whole <= LINE - indent:
        return (_joined(pieces),)
    choices = []
    used = 0
    for cut, piece in enumerate(pieces[:-1], 1):
        first, used = indent + used + piece.bare, used + piece.width
        uneven = abs(first - (whole - used))
        rank = piece.rank if uneven <= LINE // 2 else 0
        choices.append((max(first, whole - used) > LINE, -rank, uneven, cut))
    cut = min(choices)[-1]
    return _joined(pieces[:cut]), _joined(pieces[cut:])


def _joined(pieces: Sequence[_Piece]) -> str:
    return "".join(piece.text for piece in pieces).strip()


def width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
