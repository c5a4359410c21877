"""Writes numbers that a text has as words in digits: "twenty-five dollars" becomes "25 dollars". No I/O.

The library words2num2 reads the numbers. It knows more languages than LANGUAGES: in some it writes "1" for a word that
is an article as well (Russian, Polish, Turkish), in Dutch it adds zeros to telephone numbers, and the rest are untried.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import pairwise

import structlog
from msgspec.structs import replace

from asr.languages import base
from config import ConfigError, Settings
from mediaworker.events.schema import Word
from mediaworker.policy.spoken_digits import BY_LANGUAGE, ROUND

LANGUAGES = frozenset(("de", "en", "es", "fr", "it", "pt"))
"""The languages (ISO 639-1) whose numbers are written in digits."""
_TOKEN = re.compile(r"\S+")
_MARKS = ".,;:!?…"
Span = tuple[int, int]

log = structlog.get_logger()


def wants_digits(settings: Settings) -> bool:
    """Return whether the settings ask for digits. Raises ConfigError if the library is missing."""
    if settings.text.numerals != "digits":
        return False
    try:
        _library()
    except ImportError:
        raise ConfigError("text.numerals", "digits", "needs the package words2num2, which is not installed") from None
    return True


def with_digits(text: str, language: str) -> str:
    """Return the text with its numbers in digits; in another language than LANGUAGES, the text itself."""
    if base(language) not in LANGUAGES:
        return text
    try:
        return "".join(_library()(part, base(language)) for part in _parts(text, base(language)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic in the library's Rust is no Exception; no text is worth a call
        log.exception("a number could not be written in digits: the text stays as it was spoken")
        return text


def _parts(text: str, language: str) -> list[str]:
    """Return the parts of a text that are read on their own.

    The library takes "vierundfünfzig sieben", digits of a German telephone number, for the year 5407, though in German
    a number below 100 is one word. So a text is cut after such a number if a digit follows.
    """
    if language != "de":
        return [text]
    cuts = [0]
    for before, after in pairwise(_TOKEN.finditer(text)):
        if _german(before.group()) == 2 and _german(after.group().rstrip(_MARKS)) == 1:
            cuts.append(before.end())
    return [text[start:end] for start, end in pairwise([*cuts, len(text)])]


def _german(word: str) -> int:
    """Return how many digits a German number word below 100 has; 0 for another word."""
    word = word.casefold()
    return 2 if word in ROUND else len(BY_LANGUAGE["de"].get(word, ""))


@cache
def _library() -> Callable[[str, str], str]:
    """Import the library, and build its tables in the background: the first text of a language waits for 0.1 to 0.2 s.
    The library lets other threads run meanwhile."""
    from words2num2 import words2num_sentence  # imported late: 12 MB with these tables, which few workers need

    def build() -> None:
        for language in sorted(LANGUAGES):
            with_digits("two", language)

    threading.Thread(target=build, name="numerals", daemon=True).start()
    return words2num_sentence


def span_as_spoken(spoken: str, written: str, span: Span) -> Span:
    """Return the part of the spoken text from which this part of the text with digits has come."""
    first, last = len(spoken), 0
    for before, after in _pairs(spoken, written):
        if after[0] < span[1] and span[0] < after[1]:
            same = spoken[slice(*before)] == written[slice(*after)]
            shift = before[0] - after[0]
            first = min(first, max(before[0], span[0] + shift) if same else before[0])
            last = max(last, min(before[1], span[1] + shift) if same else before[1])
    return (first, last) if first < last else (0, len(spoken))


def shown_words(words: Sequence[Word], spoken: str, written: str) -> list[Word]:
    """Return the timed words of a spoken text as words of the text with digits: those of a number become one. Words
    of another text are returned unchanged, as are all of them if `spoken` is empty."""
    places = _places(words, spoken)
    found: list[Word] = []
    at = 0
    for before, after in _pairs(spoken, written) if places else ():
        first = at
        while at < len(words) and places[at][0] < before[1]:
            at += 1
        if spoken[slice(*before)] == written[slice(*after)]:
            found += words[first:at]
        elif first < at and after[0] < after[1]:
            number = replace(words[first], word=written[slice(*after)], end_ms=words[at - 1].end_ms)
            found.append(number)
    return found if places and at == len(words) else list(words)


def _places(words: Sequence[Word], text: str) -> list[Span]:
    """Return the place of each word; empty if one is not in the text."""
    places: list[Span] = []
    at = 0
    for word in words:
        start = text.find(word.word, at)
        if start < 0:
            return []
        at = start + len(word.word)
        places.append((start, at))
    return places


def _pairs(spoken: str, written: str) -> Iterator[tuple[Span, Span]]:
    """Yield, in order, the parts that correspond: single words that are the same in both, and what is between them."""
    befores = [match.span() for match in _TOKEN.finditer(spoken)]
    afters = [match.span() for match in _TOKEN.finditer(written)]
    words = [spoken[slice(*each)] for each in befores], [written[slice(*each)] for each in afters]
    for kind, begin, end, new_begin, new_end in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from zip(befores[begin:end], afters[new_begin:new_end], strict=True)
        else:
            yield _whole(befores, begin, end, len(spoken)), _whole(afters, new_begin, new_end, len(written))


def _whole(spans: Sequence[Span], begin: int, end: int, length: int) -> Span:
    if begin < end:
        return spans[begin][0], spans[end - 1][1]
    at = spans[begin][0] if begin < len(spans) else length
    return at, at
