"""Finds phrases in a text regardless of case, punctuation, spaces and the spelling of numbers."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from mediaworker.errors import MediaworkerError
from mediaworker.policy.numerals import numerals
from mediaworker.policy.spoken_digits import BY_LANGUAGE, HAN

if TYPE_CHECKING:
    import regex

TIMEOUT_S = 0.05
"""The longest time that a pattern may search a text: the search runs on the event loop and delays all calls."""
_SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}"
"""The scripts without spaces between words, as a character class."""
_NUMBERS = BY_LANGUAGE | dict.fromkeys(("zh", "yue", "ja"), HAN)
"""For each language (ISO 639) its number words, with their digits."""


class PatternError(MediaworkerError, ValueError):
    """A phrase or pattern of the configuration cannot be used; the text is the reason."""


def pattern(text: str) -> regex.Pattern[str]:
    """Compile a regular expression, which ignores case unless its flags say otherwise. Raises PatternError."""
    import regex  # imported late, because it takes 3 MB that a worker without patterns saves

    try:
        compiled = regex.compile(text, regex.IGNORECASE | regex.FULLCASE | regex.V1)
    except (regex.error, RecursionError) as error:
        raise PatternError(f"not a regular expression: {error}") from None
    if compiled.match("") is not None:
        raise PatternError("it matches an empty text")
    return compiled


def search(texts: Sequence[str]) -> Search | None:
    """Finds any of the phrases as whole words; None if there are none. Raises PatternError."""
    return Search(pattern("|".join(map(_phrase, texts))), NumberPhrases(texts)) if texts else None


@dataclass(frozen=True, slots=True)
class Search:
    """A search for a pattern, and for phrases with numbers in either spelling."""

    pattern: regex.Pattern[str]
    numbers: NumberPhrases

    def finditer(self, text: str, language: str, latest: int = 0) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each match in a text of this language (ISO 639), in code points. Raises TimeoutError.

        `latest`: only matches that begin before this place and end after it; 0: matches anywhere.
        """
        for match in self.pattern.finditer(text, overlapped=latest > 0, timeout=TIMEOUT_S):
            if not latest or match.start() < latest < match.end():
                yield match.start(), match.end()
        for place in self.numbers.finditer(text, language):
            if not latest or place[0] < latest < place[1]:
                yield place


@dataclass(frozen=True, slots=True)
class _Units:
    """A text as words in lower case and single digits, with a space before and after each."""

    text: str = " "
    starts: dict[int, int] = field(default_factory=dict)
    """For each place in `text` at which a word or a number begins, its place in the original."""
    ends: dict[int, int] = field(default_factory=dict)
    """For each place in `text` at which a word or a number ends, its place in the original."""


class NumberPhrases:
    """The phrases that contain a number, which matches in either spelling: "press five", "press 5"."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._units: dict[str, list[str]] = {}
        """The phrases by language, each as the text of `_Units`."""
        for text in texts:
            words = {match.group().casefold() for match in _tokens().finditer(text)}
            written = any(word[0].isdecimal() for word in words)
            for language, table in _NUMBERS.items():
                if written or language == "en" or words & table.keys():
                    units = _units(text, language).text
                    if any(each.isdecimal() for each in units):
                        self._units.setdefault(language, []).append(units)

    def finditer(self, text: str, language: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each phrase in a text of this language (ISO 639), in code points."""
        language = language if language in _NUMBERS else "en"
        if not (phrases := self._units.get(language)):
            return
        units = _units(text, language)
        for phrase in phrases:
            at = units.text.find(phrase)
            while at >= 0:
                stop = at + len(phrase) - 1
                if at in units.starts and stop in units.ends:  # not in the middle of a longer number
                    yield units.starts[at], units.ends[stop]
                at = units.text.find(phrase, at + 1)


@lru_cache(maxsize=2)  # all rules search the same two texts: a final and its turn
def _units(text: str, language: str) -> _Units:
    tokens = [(match.group().casefold(), match.start(), match.end()) for match in _tokens().finditer(text)]
    units = _Units()
    parts = [""]
    size = 0
    for word, first, last in numerals([_numeral(token, language) for token, _, _ in tokens]):
        each = list(word) if word.isdecimal() else [word]
        units.starts[size] = tokens[first][1]
        size += sum(map(len, each)) + len(each)
        units.ends[size] = tokens[last - 1][2]
        parts += each
    return _Units(" ".join([*parts, ""]), units.starts, units.ends)


def _numeral(token: str, language: str) -> str:
    """Return the number of a single number word, and an ordinal with the ending "th". `numerals` handles English
    words, so they are returned as they are."""
    if token[0].isdecimal():
        digits = "".join(str(unicodedata.decimal(each)) for each in token if each.isdecimal())
        return digits if token[-1].isdecimal() else f"{digits}th"
    return token if language == "en" else _NUMBERS[language].get(token, token)


@lru_cache(maxsize=1)
def _tokens() -> regex.Pattern[str]:
    import regex

    return regex.compile(
        rf"\d+(?:st|nd|rd|th)(?![^\W_])|\d+|[{_SPACELESS}]|[^\W\d_{_SPACELESS}]+", regex.V1 | regex.IGNORECASE
    )


def _phrase(text: str) -> str:
    import regex

    words = regex.findall(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+", text, regex.V1)
    if not words:
        raise PatternError("a phrase needs a word")
    alone = [regex.match(rf"[{_SPACELESS}]", word, regex.V1) is not None for word in words]
    parts = ["" if alone[0] else r"(?<![^\W_])", regex.escape(words[0])]
    for number, word in enumerate(words[1:], 1):
        # Chinese, Japanese and Thai are written without spaces, but recognisers insert some.
        parts += [r"[\W_]*" if alone[number - 1] or alone[number] else r"[\W_]+", regex.escape(word)]
    return "".join([*parts, "" if alone[-1] else r"(?![^\W_])"])
