"""Pure functions over the tokens of an answer: what may follow, and where it must end.

A partial is likely to go on as the partial before it did there. Prompt lookup decoding (Saxena, 2023) makes a guess of
that: it costs no network of its own, and one call verifies all of it.

An answer may not be a loop, nor have more words than anybody can speak.
"""

from __future__ import annotations

from collections.abc import Sequence

from asr.engines.moonshine.model import RATE_HZ
from asr.repetition import is_loop, once

GUESSED = 8
"""Tokens of a guess. One that is wrong costs a quarter of a millisecond, and one that is right saves three."""
SHORTEST_S = 0.4
"""The model makes up a word for less audio than this."""
TOKENS_PER_S = 6.5
"""Nobody speaks faster: the model's authors end an answer there, and the fastest of 280 recorded prompts has 5.9."""
TOKENS_MORE = 4


def continuation(draft: Sequence[int], token: int, at: int) -> list[int]:
    """The tokens that follow `token` in the draft. Where it stands there several times, the place nearest to `at`
    counts."""
    places = [place for place, each in enumerate(draft) if each == token]
    if not places:
        return []
    place = min(places, key=lambda place: abs(place - at))
    return list(draft[place + 1 : place + 1 + GUESSED])


def longest(samples: int) -> int:
    """Tokens that an answer to so much audio may have."""
    return int(TOKENS_PER_S * samples / RATE_HZ) + TOKENS_MORE


def is_over(tokens: Sequence[int], limit: int) -> bool:
    """True when an answer that has not come to its end may not go on."""
    return len(tokens) >= limit or is_loop(tokens)


def believable(tokens: Sequence[int], limit: int) -> list[int]:
    """The part of an answer that is shown: a repetition at its end is shown once.

    A speaker may repeat a word three times, so a repetition counts as a loop only in an answer that did not come to an
    end by itself.
    """
    if not is_over(tokens, limit):
        return list(tokens)
    return _without_tail(once(tokens))


def _without_tail(tokens: Sequence[int]) -> list[int]:
    """Without the repetitions at the end, of which the last one may be incomplete."""
    for size in range(1, len(tokens) // 2 + 1):
        same = 0
        while same + size < len(tokens) and tokens[-1 - same] == tokens[-1 - same - size]:
            same += 1
        if same >= size:
            return list(tokens[: len(tokens) - same])
    return list(tokens)
