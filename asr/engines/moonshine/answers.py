"""Pure functions over the tokens and words of an answer: what may follow, where it must end, and what a reader sees.

A partial is likely to go on as the partial before it did there. Prompt lookup decoding (Saxena, 2023) makes a guess of
that: it costs no network of its own, and one call verifies all of it.

An answer may not be a loop, nor have more words than anybody can speak.

At its end the audio of a partial breaks off in the middle of a word, and what the model makes of that is often another
word a moment later. So a reader gets to see a word when two hypotheses in a row have had it, early in an utterance only
if the model is sure of it or three have had it; it is replaced only when so many agree on another one. A pause of the
speaker ends the last word, and everything is shown, unless that replaces a word: then the final will have it, if the
utterance ends here.
"""

from __future__ import annotations

import re
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
_PLAIN = re.compile(r"[^\w']+")
_TAIL = re.compile(r"[\s.,;:!?…-]+$")


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


def plain(word: str) -> str:
    """The word for comparing: without case and punctuation."""
    return _PLAIN.sub("", word).casefold()


def agreed(one: Sequence[str], other: Sequence[str]) -> int:
    """Words at the start of both that are equal, in spite of case and punctuation."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if plain(left) != plain(right):
            break
        count += 1
    return count


class Shown:
    """The text of one utterance that a reader sees."""

    __slots__ = ("_before", "_earlier", "_shown")

    def __init__(self) -> None:
        self._before: list[str] = []
        """The last hypothesis, whole."""
        self._earlier: list[str] = []
        """The one before it."""
        self._shown: list[str] = []

    @property
    def words(self) -> int:
        return len(self._shown)

    def pause(self, text: str) -> bool:
        """A hypothesis about audio that ends in a pause; True when it can be shown without replacing a word."""
        words = text.split()
        if agreed(words, self._shown) < len(self._shown):
            return False
        self._earlier = self._before = self._shown = words
        return True

    def partial(self, text: str, likely: int | None = None) -> str:
        """A hypothesis about audio that breaks off; what is to be shown of it.

        `likely`: the model is sure of so many words at its start; None: of all.
        """
        words = text.split()
        sure = agreed(words, self._before)
        if likely is not None:
            sure = max(min(sure, likely), min(sure, agreed(words, self._earlier)))
        kept = agreed(words, self._shown)
        self._earlier, self._before = self._before, words
        if kept == len(self._shown):
            self._shown = words[: max(sure, kept)]
        elif sure > kept:  # two in a row have another word
            self._shown = words[:sure]
        shown = " ".join(self._shown)
        # A full stop where the audio breaks off says nothing about the sentence.
        return _TAIL.sub("", shown)
