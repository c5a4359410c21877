"""Where words begin and end, from what two networks know. Pure functions; times are in seconds.

The decoder's attention says in which order and roughly when the words came. It turns to a word a little before the word
begins, it never leaves the audio, so that a pause belongs to the word behind it, and it knows no end. The voice
detector knows pauses and no words. So each pause is given to the word whose beginning is nearest, and the words between
two pauses touch each other.

The constants were chosen on one half of the English prompts, and measured on the other (docs/measurements/words.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asr.engines.speech import WINDOW_S

EARLY_S = 0.05
"""Attention turns to a word so much before it begins."""
PAUSE_WINDOWS = 3
"""A shorter pause may be the closure of a consonant."""
REACH_S = 0.5
"""A pause further from the beginning of every word lies within a word, or beside words that are not in the text."""
BEHIND = 3.0
"""A beginning behind a pause counts so many times as far as one before it: attention is early, and seldom late."""
BESIDE_S = 0.3
"""A pause of this length ends the last word and precedes the first one, even if neither begins near it."""
SHORTEST_S = 0.04
"""A word has so much of the time, where there is enough for all."""

Span = tuple[float, float]


def place(begins: Sequence[float], voiced: NDArray[np.bool_], end_s: float) -> list[Span]:
    """The start and the end of each word.

    Args:
        begins: where attention turns to each word, in their order; the times do not fall.
        voiced: whether the detector hears speech in each window of `WINDOW_S`.
        end_s: the length of the audio.
    """
    begins = [min(end_s, begin + EARLY_S) for begin in begins]
    talk = stretches(voiced, end_s) or [(min(begins[0], end_s), end_s)]
    pauses = [(end, begin) for (_, end), (begin, _) in zip(talk, talk[1:], strict=False)]
    edges = _given(pauses, begins)
    first_s = _first(talk[0][0], pauses, begins, edges)
    last_s = max(first_s, _last(talk[-1][1], pauses, begins, edges))
    spans: list[Span] = []
    known = [(0, (first_s, first_s)), *sorted(edges.items()), (len(begins), (last_s, last_s))]
    for (word, (_, low_s)), (behind, (high_s, _)) in zip(known, known[1:], strict=False):
        inner = between(begins[word + 1 : behind], low_s, max(low_s, high_s))
        spans += zip([low_s, *inner], [*inner, max(low_s, high_s)], strict=True)
    return spans


def stretches(voiced: NDArray[np.bool_], end_s: float) -> list[Span]:
    """Where somebody speaks. The detector is a window late at both ends, and pauses of less than `PAUSE_WINDOWS` are
    left out."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], voiced, [False]]).astype(np.int8)))
    found: list[list[int]] = []
    for begin, end in edges.reshape(-1, 2).tolist():
        if found and begin - found[-1][1] < PAUSE_WINDOWS:
            found[-1][1] = end
        else:
            found.append([begin, end])
    early = [(max(0, begin - 1) * WINDOW_S, min(end_s, (end - 1) * WINDOW_S)) for begin, end in found]
    return [(begin_s, stop_s) for begin_s, stop_s in early if begin_s < stop_s]


def _given(pauses: Sequence[Span], begins: Sequence[float]) -> dict[int, Span]:
    """Word → the pause before it. The first word has none: silence before it is no pause."""
    given: dict[int, Span] = {}
    latest = 0
    for pause in pauses:
        near = min(range(latest + 1, len(begins)), key=lambda word: _distance(begins[word], pause), default=0)
        if near and _distance(begins[near], pause) <= REACH_S:
            given[near], latest = pause, near
    return given


def _distance(begin_s: float, pause: Span) -> float:
    return max(0.0, pause[0] - begin_s, BEHIND * (begin_s - pause[1]))


def _first(begin_s: float, pauses: Sequence[Span], begins: Sequence[float], given: dict[int, Span]) -> float:
    """Where the first word begins: at the first speech, but behind a pause long before the second word."""
    if len(begins) < 2:
        return begin_s
    until_s = min([begins[1], *(pause[0] for pause in given.values())])
    return max([begin_s, *(end for start, end in pauses if end < until_s and end - start >= BESIDE_S)])


def _last(end_s: float, pauses: Sequence[Span], begins: Sequence[float], given: dict[int, Span]) -> float:
    """Where the last word ends: at the last speech, but before a pause long behind its beginning."""
    from_s = max([begins[-1], *(pause[1] for pause in given.values())])
    return min([end_s, *(start for start, end in pauses if start > from_s and end - start >= BESIDE_S)])


def between(begins: Sequence[float], low_s: float, high_s: float) -> list[float]:
    """These beginnings between two times, with `SHORTEST_S` for each word, or as much as all can have."""
    least_s = min(SHORTEST_S, (high_s - low_s) / (len(begins) + 1))
    found, at_s = [], low_s
    for begin_s in begins:
        at_s = max(begin_s, at_s + least_s)
        found.append(at_s)
    at_s = high_s
    for place, begin_s in reversed(list(enumerate(found))):
        at_s = max(low_s, min(begin_s, at_s - least_s))
        found[place] = at_s
    return found
