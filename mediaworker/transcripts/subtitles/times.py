"""When each part of a text was said: by the times of its words, or else shared out by length. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from mediaworker.events.schema import Word
from mediaworker.transcripts.subtitles.places import Atom, BreakPlace, columns, said

PAUSE_MS = 300
"""A silence between words that is worth a cut."""
SILENCE_MS = 1500
"""Words before and behind it do not belong on the screen together: BBC Subtitle Guidelines, no subtitle is ahead of the
speech by more than that."""
FASTEST = 50
"""Columns a second. Nobody speaks so fast: an end that asks for more is no end."""
_DIGIT = 3
"""A digit is a word, and a short one."""
_BREATHS = {BreakPlace.CLAUSE: 4, BreakPlace.END: 8}
"""What punctuation takes, in columns: a quarter and half a second at the usual speed."""


@dataclass(frozen=True, slots=True)
class Timed(Atom):
    """Times never go back from one to the next, nor do they overlap."""

    start_ms: int
    end_ms: int


def timed(
    text: str, atoms: Sequence[Atom], words: Sequence[Word], start_ms: int, end_ms: int, until_ms: int | None
) -> list[Timed]:
    """All of them between `start_ms` and `end_ms`, and none after `until_ms`."""
    if until_ms is not None:
        end_ms = min(end_ms, until_ms)
        # Words that would be shown too late all together are better shown too early, one cue after the other.
        words = words if words and words[-1].start_ms < until_ms else ()
    by_words = _by_words(text, atoms, words, start_ms, max(start_ms, end_ms))
    return by_words or list(_shared(text, atoms, start_ms, end_ms, until_ms))


def _shared(text: str, atoms: Sequence[Atom], start_ms: int, end_ms: int, until_ms: int | None) -> Iterator[Timed]:
    """In proportion to what is said of each, breath included."""
    lengths = [_length(text[atom.start : atom.end]) + _BREATHS.get(atom.place, 0) for atom in atoms]
    whole = max(1, sum(lengths))
    end_ms = max(end_ms, start_ms + 1000 * whole // FASTEST)
    if until_ms is not None:
        end_ms = max(start_ms, min(end_ms, until_ms))
    edges = [start_ms + (end_ms - start_ms) * so_far // whole for so_far in accumulate(lengths, initial=0)]
    for atom, (begins, ends) in zip(atoms, pairwise(edges), strict=True):
        yield Timed(atom.start, atom.end, atom.place, begins, ends)


def _length(text: str) -> int:
    return sum(_DIGIT if each.isdigit() else columns(each) for each in text if said(each))


def _by_words(text: str, atoms: Sequence[Atom], words: Sequence[Word], low_ms: int, high_ms: int) -> list[Timed]:
    """Empty when the words are not those of the text, or their times cannot be true."""
    places = _found(text, words)
    spans = _spans(words, low_ms, high_ms) if places else []
    if not spans:
        return []
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for (first, behind), (start_ms, end_ms) in zip(places, spans, strict=True):
        for at in range(first, behind):
            begins[at] = start_ms + (end_ms - start_ms) * (at - first) // (behind - first)
            ends[at] = start_ms + (end_ms - start_ms) * (at + 1 - first) // (behind - first)
    edges = {behind for _, behind in places}
    found: list[Timed] = []
    for atom in atoms:
        heard = [at for at in range(atom.start, atom.end) if at in begins]
        before_ms = found[-1].end_ms if found else low_ms
        start_ms, end_ms = (begins[heard[0]], ends[heard[-1]]) if heard else (before_ms, before_ms)
        place = _known(atom.place, whole=heard[-1] + 1 in edges) if heard else atom.place
        found.append(Timed(atom.start, atom.end, place, start_ms, end_ms))
    return [*(_paused(atom, after) for atom, after in pairwise(found)), found[-1]]


def _found(text: str, words: Sequence[Word]) -> list[tuple[int, int]]:
    """Where each is in the text. Empty when one is missing, or a letter of the text is in none of them."""
    found: list[tuple[int, int]] = []
    at = 0
    for word in words:
        begins = text.find(word.word, at)
        if begins < 0 or any(map(said, text[at:begins])):
            return []
        at = begins + len(word.word)
        found.append((begins, at))
    return [] if any(map(said, text[at:])) else found


def _spans(words: Sequence[Word], low_ms: int, high_ms: int) -> list[tuple[int, int]]:
    """Within the utterance, none overlapping the next. Empty when they go back, or take no time at all."""
    starts = [min(max(word.start_ms, low_ms), high_ms) for word in words]
    if any(after.start_ms < word.start_ms for word, after in pairwise(words)):
        return []
    nexts = [*starts[1:], high_ms]
    ends = [min(max(word.end_ms, start), after) for word, start, after in zip(words, starts, nexts, strict=True)]
    return list(zip(starts, ends, strict=True)) if ends[-1] > starts[0] else []


def _known(place: BreakPlace, *, whole: bool) -> BreakPlace:
    """Words are known: a character that ends one is as good as a space, and one that does not is no good."""
    if place not in (BreakPlace.POOR, BreakPlace.PLAIN):
        return place
    return BreakPlace.PLAIN if whole else BreakPlace.POOR


def _paused(atom: Timed, after: Timed) -> Timed:
    silence_ms = after.start_ms - atom.end_ms
    if silence_ms < PAUSE_MS:
        return atom
    return replace(atom, place=max(atom.place, BreakPlace.END if silence_ms >= SILENCE_MS else BreakPlace.PAUSE))
