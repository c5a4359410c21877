"""Computes the times of the parts of a text: from its words' times, or else in proportion to their length. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from mediaworker.events.schema import Word
from mediaworker.transcripts.subtitles.places import Atom, BreakPlace, columns, is_spoken

PAUSE_MS = 300
"""The shortest silence between words that makes a good place for a cut."""
SILENCE_MS = 1500
"""The silence from which the words before and after it should not be in one cue. By the BBC Subtitle Guidelines no
subtitle is ahead of the speech by more than this."""
FASTEST = 50
"""The fastest plausible speech, in columns per second. An end time that implies more is wrong and is moved."""
_DIGIT = 3
"""The length of a digit in columns, since it is spoken as a short word."""
_BREATHS = {BreakPlace.CLAUSE: 4, BreakPlace.END: 8}
"""The length of the pause at punctuation, in columns: a quarter and half a second at the usual speed."""


@dataclass(frozen=True, slots=True)
class Timed(Atom):
    """An atom with its times. The times of successive atoms ascend and do not overlap."""

    start_ms: int
    end_ms: int


def timed(
    text: str, atoms: Sequence[Atom], words: Sequence[Word], start_ms: int, end_ms: int, until_ms: int | None
) -> list[Timed]:
    """Return all atoms with times between `start_ms` and `end_ms`, and none after `until_ms`."""
    if until_ms is not None:
        end_ms = min(end_ms, until_ms)
        # The last word starts after `until_ms`. By the words' times, the last cues would all be shown at once at
        # `until_ms`, so the text is shared out over the time that there is, and shown somewhat early.
        words = words if words and words[-1].start_ms < until_ms else ()
    by_words = _by_words(text, atoms, words, start_ms, max(start_ms, end_ms))
    return by_words or list(_shared(text, atoms, start_ms, end_ms, until_ms))


def _shared(text: str, atoms: Sequence[Atom], start_ms: int, end_ms: int, until_ms: int | None) -> Iterator[Timed]:
    """Share the time out between the atoms in proportion to their spoken length, including pauses at punctuation."""
    lengths = [_length(text[atom.start : atom.end]) + _BREATHS.get(atom.place, 0) for atom in atoms]
    whole = max(1, sum(lengths))
    end_ms = max(end_ms, start_ms + 1000 * whole // FASTEST)
    if until_ms is not None:
        end_ms = max(start_ms, min(end_ms, until_ms))
    edges = [start_ms + (end_ms - start_ms) * so_far // whole for so_far in accumulate(lengths, initial=0)]
    for atom, (begins, ends) in zip(atoms, pairwise(edges), strict=True):
        yield Timed(atom.start, atom.end, atom.place, begins, ends)


def _length(text: str) -> int:
    return sum(_DIGIT if each.isdigit() else columns(each) for each in text if is_spoken(each))


def _by_words(text: str, atoms: Sequence[Atom], words: Sequence[Word], low_ms: int, high_ms: int) -> list[Timed]:
    """Return the atoms with the times of their words; empty when the words are not those of the text, or when their
    times are impossible."""
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
        timed_at = [at for at in range(atom.start, atom.end) if at in begins]
        before_ms = found[-1].end_ms if found else low_ms
        start_ms, end_ms = (begins[timed_at[0]], ends[timed_at[-1]]) if timed_at else (before_ms, before_ms)
        place = _known(atom.place, whole=timed_at[-1] + 1 in edges) if timed_at else atom.place
        found.append(Timed(atom.start, atom.end, place, start_ms, end_ms))
    return [*(_paused(atom, after) for atom, after in pairwise(found)), found[-1]]


def _found(text: str, words: Sequence[Word]) -> list[tuple[int, int]]:
    """Return the place of each word in the text; empty when a word is not in it, or a letter of it is in no word."""
    found: list[tuple[int, int]] = []
    at = 0
    for word in words:
        begins = text.find(word.word, at)
        if begins < 0 or any(map(is_spoken, text[at:begins])):
            return []
        at = begins + len(word.word)
        found.append((begins, at))
    return [] if any(map(is_spoken, text[at:])) else found


def _spans(words: Sequence[Word], low_ms: int, high_ms: int) -> list[tuple[int, int]]:
    """Return the times of the words, clamped to the utterance and without overlaps; empty when they go back, or have no
    duration at all."""
    starts = [min(max(word.start_ms, low_ms), high_ms) for word in words]
    if any(after.start_ms < word.start_ms for word, after in pairwise(words)):
        return []
    nexts = [*starts[1:], high_ms]
    ends = [min(max(word.end_ms, start), after) for word, start, after in zip(words, starts, nexts, strict=True)]
    return list(zip(starts, ends, strict=True)) if ends[-1] > starts[0] else []


def _known(place: BreakPlace, *, whole: bool) -> BreakPlace:
    """Return the place after a character of a script without spaces, now that the words are known: the end of a word is
    as good as a space, and a place inside a word is poor."""
    if place not in (BreakPlace.POOR, BreakPlace.PLAIN):
        return place
    return BreakPlace.PLAIN if whole else BreakPlace.POOR


def _paused(atom: Timed, after: Timed) -> Timed:
    silence_ms = after.start_ms - atom.end_ms
    if silence_ms < PAUSE_MS:
        return atom
    return replace(atom, place=max(atom.place, BreakPlace.END if silence_ms >= SILENCE_MS else BreakPlace.PAUSE))
