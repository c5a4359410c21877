"""Finds runs of digits in a text, written or spoken, and decides whether one is a card number. No I/O."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mediaworker.policy.spoken_digits import FILLERS, HAN, HESITATION, PORTUGUESE, REPEATS, ROUND, WORDS

_HAN = "".join(HAN)
_TOKEN = re.compile(rf"(?P<digits>\d+)|(?P<han>[{_HAN}])|(?P<word>[^\W\d_{_HAN}]+)")
_WRITTEN = re.compile(rf"[\d{_HAN}]")
_LETTERS = re.compile(rf"[^\W\d_{_HAN}]+")
_GAP = re.compile(r"[\W_]{0,4}")
MAX_FILLERS = 3
"""The most fillers in a row that do not end a run."""
MIN_CARD, MAX_CARD = 13, 19
"""The lengths of card numbers in use, within ISO/IEC 7812-1."""
_TWO_TELEPHONES = re.compile(r"(?:(?:1 )?3 3 4|3 4|10|7)(?: (?:1 )?3 3 4| 3 4| 10| 7)")
"""The group sizes of two North American telephone numbers; card numbers are not grouped in this way."""


@dataclass(slots=True)
class DigitRun:
    """Digits with nothing but separators and fillers between them: text[start:end], offsets in code points."""

    start: int
    end: int
    digits: str = ""
    ends: list[int] = field(default_factory=list)
    """The place in the text at which each digit ends."""
    groups: list[int] = field(default_factory=list)
    """The number of digits in each group that is written together; spoken digits have no groups."""
    signed: bool = False
    """A plus precedes the run, as in a telephone number."""

    @property
    def in_fours(self) -> bool:
        """True when all digits are written in groups of four, as on a card."""
        return sum(self.groups) == len(self.digits) and all(size % 4 == 0 for size in self.groups)


def at_most(text: str) -> int:
    """Return an upper bound of the number of digits in a text, at a tenth of the cost of `runs`."""
    words = _LETTERS.findall(text.casefold())
    spoken = sum(word in WORDS or word in ROUND for word in words)
    return len(_WRITTEN.findall(text)) + 2 * spoken + 4 * sum(word in REPEATS for word in words)


def runs(text: str) -> Iterator[DigitRun]:
    """Yield every run of the text, in order."""
    reader = _Reader(text)
    for token in _TOKEN.finditer(text):
        if (run := reader.read(token)) is not None:
            yield run
    if (run := reader.end()) is not None:
        yield run


class _Reader:
    """Reads the tokens of a text one by one, and returns a run once it is complete."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._run: DigitRun | None = None
        self._last = 0
        """The end of the latest token."""
        self._fillers = 0
        self._portuguese = False
        """True when the latest digit was a Portuguese word."""
        self._tens, self._tens_end = "", 0
        """The first digit of a pending ten, and its end in the text: the next word decides between 40 and 42."""
        self._repeat = 1

    def read(self, token: re.Match[str]) -> DigitRun | None:
        near = self._run is not None and _GAP.fullmatch(self._text, self._last, token.start()) is not None
        self._last = token.end()
        word = token.group().casefold() if token["word"] else ""
        digits, tens, repeat = _digits(token), ROUND.get(word, ""), REPEATS.get(word, 0)
        if word == HESITATION and not (near and self._portuguese):
            digits = ""
        if not (digits or tens or repeat):
            if near and self._fillers < MAX_FILLERS and word in FILLERS:
                self._fillers += 1
                return None
            return self.end()
        over = None if near else self.end()
        self._fillers, self._portuguese = 0, word in PORTUGUESE
        if self._run is None:
            signed = self._text[: token.start()].rstrip().endswith("+")
            self._run = DigitRun(token.start(), token.start(), signed=signed)
        if digits:
            self._add(digits, token)
        elif tens:
            self._settle()
            self._tens, self._tens_end = tens, token.end()
        else:
            self._repeat = repeat
        return over

    def end(self) -> DigitRun | None:
        self._settle()
        run, self._run, self._fillers, self._repeat = self._run, None, 0, 1
        return run if run is not None and run.digits else None

    def _settle(self) -> None:
        tens, self._tens = self._tens, ""
        if tens and self._run is not None:
            self._put(tens + "0", [self._tens_end] * 2)

    def _add(self, digits: str, token: re.Match[str]) -> None:
        assert self._run is not None
        if self._tens and token["word"] and len(digits) == 1 and digits != "0":
            digits, self._tens = self._tens + digits, ""
        self._settle()
        repeat, self._repeat = self._repeat if len(digits) == 1 else 1, 1
        if token["digits"] and repeat == 1:
            self._put(digits, range(token.start() + 1, token.end() + 1))
            self._run.groups.append(len(digits))
        else:
            self._put(digits * repeat, [token.end()] * (len(digits) * repeat))

    def _put(self, digits: str, ends: Sequence[int]) -> None:
        assert self._run is not None
        self._run.digits += digits
        self._run.ends += ends
        self._run.end = ends[-1]


def _digits(token: re.Match[str]) -> str:
    if written := token["digits"]:
        return "".join(str(unicodedata.digit(digit)) for digit in written)
    return HAN[token["han"]] if token["han"] else WORDS.get(token.group().casefold(), "")


def is_open(text: str, run: DigitRun, *, growing: bool = False) -> bool:
    """Return whether the run is still open at the end of the text, so that another digit may follow.

    `growing`: the text's last word may be incomplete.
    """
    behind = [token for token in _TOKEN.finditer(text, run.end)]
    if growing and behind and behind[-1].end() == len(text):
        behind.pop()
    return all(token.group().casefold() in FILLERS or token.group().casefold() in REPEATS for token in behind)


def is_only_filler(text: str) -> bool:
    """Return whether the text has neither a digit nor a word that would end a run."""
    return all(token.group().casefold() in FILLERS for token in _TOKEN.finditer(text))


def is_card(digits: str) -> bool:
    """Return whether the digits may be a payment card's number with one misrecognised digit."""
    # 14 to 17 digits: one may be added, missing or wrong in a number of 15 or 16.
    return checks(digits) or (14 <= len(digits) <= 17 and _network(digits))


def checks(digits: str) -> bool:
    """Return whether the digits are a payment card's number with a valid check digit."""
    return MIN_CARD <= len(digits) <= MAX_CARD and _network(digits) and luhn(digits)


def holds_card(run: DigitRun) -> bool:
    """Return whether the run contains a card number, perhaps with other digits before or after it."""
    if checks(run.digits) or any(_network(part) and luhn(part) for part in _parts(run)):
        return True
    return is_card(run.digits) and not _TWO_TELEPHONES.fullmatch(" ".join(map(str, run.groups)))


def are_telephones(first: int, second: int) -> bool:
    """Return whether two numbers with `first` and `second` digits are telephone numbers rather than the halves of a
    card number with a misrecognised digit. A national telephone number has 7 to 11 digits."""
    return 7 <= min(first, second) and max(first, second) <= 11 and abs(first - 8) + abs(second - 8) > 1


def _parts(run: DigitRun) -> Iterator[str]:
    """Yield the parts of a run that may be a card number.

    If all digits are written, they are the parts that begin and end with a group. A spoken number has no groups, and
    one in ten random parts has a valid check digit, so only a few starts and lengths are tried.
    """
    size, places = len(run.digits), [0]
    for group in run.groups:
        places.append(places[-1] + group)
    if places[-1] == size:
        for at, first in enumerate(places):
            for last in places[at + 1 : at + 1 + MAX_CARD]:
                if MIN_CARD <= last - first <= MAX_CARD:
                    yield run.digits[first:last]
        return
    starts = {lead(run.digits), 0, size - 16, size - 15}
    for first in sorted(starts):
        for last in (first + 15, first + 16):
            if 0 <= first and last <= size:
                yield run.digits[first:last]


def lead(digits: str) -> int:
    """Return the number of leading digits that do not belong to a card number, such as a spoken 'oh' or 'one'."""
    return next((at for at in range(min(3, len(digits))) if digits[at] not in "01"), 0)


def may_become_card(digits: str) -> bool:
    return digits[:1] in ("2", "3", "4", "5", "6")


def luhn(digits: str) -> bool:
    """Return whether the check digit is valid (ISO/IEC 7812-1 annex B)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) << (place & 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _network(digits: str) -> bool:
    """Return whether the digits begin like a number of a large card network."""
    two, four = int(digits[:2] or 0), int(digits[:4] or 0)
    return (
        digits[:1] == "4"
        or 50 <= two <= 69  # Mastercard, Maestro, Discover, UnionPay
        or two in (34, 37, 36, 38)
        or 2221 <= four <= 2720
        or 3000 <= four <= 3059
        or 3528 <= four <= 3589
    )
