"""Finds the words of a text as the forced aligner reads them, and where each stands in the text."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from transformers import Qwen3ASRProcessor

from asr import languages

log = structlog.get_logger("asr")


@dataclass(frozen=True, slots=True)
class PlacedWord:
    """A word: what the model reads, and what is shown."""

    token: str
    """Letters and digits only."""
    word: str
    """The text from the first of them to the last, with what stands between: `well-known`, `3.14`, `don’t`."""


def split(text: str, language: str) -> list[PlacedWord]:
    """The words of a final. Spaces end a word and every Han character is one; in Japanese and Korean a package finds
    them (`languages.SPLITTERS`)."""
    library: Any = Qwen3ASRProcessor
    # The method uses nothing of the object.
    return place(library.split_words_for_alignment(None, text, languages.name(language)), text)


def usable() -> tuple[str, ...]:
    """Codes of the languages in which words are found here: a package may be installed, and not what it needs."""
    found = []
    for code in languages.alignable():
        try:
            split("1", code)
        except ImportError as error:
            log.warning("no times of words", language=code, reason=str(error))
        else:
            found.append(code)
    return tuple(found)


def place(tokens: list[str], text: str) -> list[PlacedWord]:
    """Find each token in the text, whose letters and digits they are, or those of its plain form (NFKC: `1` for `１`).
    What a splitter has changed otherwise is shown as the splitter gave it."""
    together = "".join(tokens)
    kept = set(together)
    for form in (str, partial(unicodedata.normalize, "NFKC")):
        letters = [(at, each) for at, character in enumerate(text) for each in form(character) if each in kept]
        if "".join(each for _, each in letters) == together:
            break
    else:
        return [PlacedWord(token, token) for token in tokens]
    placed, begun = [], 0
    for token in tokens:
        first, last = letters[begun][0], letters[begun + len(token) - 1][0]
        placed.append(PlacedWord(token, text[first : last + 1]))
        begun += len(token)
    return placed


def monotone(times: list[float]) -> list[int]:
    """Times that never go back: the longest run of rising ones stays, and what lies between two of these is moved.

    One or two go to the nearer neighbour, more are spread evenly; at either end they go to the neighbour there is.
    """
    rising = _longest_rising(times)
    repaired = list(times)
    kept_at = [-1, *rising, len(times)]
    for left, right in zip(kept_at, kept_at[1:], strict=False):
        count = right - left - 1
        for at in range(left + 1, right):
            if left < 0 or right == len(times):
                repaired[at] = times[right] if left < 0 else times[left]
            elif count <= 2:
                repaired[at] = times[left] if at - left <= right - at else times[right]
            else:
                repaired[at] = times[left] + (times[right] - times[left]) / (count + 1) * (at - left)
    return [int(time) for time in repaired]


def _longest_rising(times: list[float]) -> list[int]:
    """Places of the longest part that never falls; of several the one found first."""
    length, before = [1] * len(times), [-1] * len(times)
    for at, time in enumerate(times):
        for earlier in range(at):
            if times[earlier] <= time and length[earlier] >= length[at]:
                length[at], before[at] = length[earlier] + 1, earlier
    places: list[int] = []
    at = length.index(max(length)) if length else -1
    while at >= 0:
        places.append(at)
        at = before[at]
    return places[::-1]
