"""The words of an utterance that a reader sees while it is spoken.

At its end the audio of a partial breaks off in the middle of a word, and what a model makes of that is often another
word a moment later. So a reader gets to see a word when two hypotheses in a row have had it, early in an utterance only
if the model is sure of it or three have had it; it is replaced only when so many agree on another one. A pause of the
speaker ends the last word, and everything is shown, unless that replaces a word: then the final will have it, if the
utterance ends here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PLAIN = re.compile(r"[^\w']+")
_TAIL = re.compile(r"[\s.,;:!?…-]+$")


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
