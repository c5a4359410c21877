"""Turns English number words into numerals, so that "five" and "5" are the same word. No I/O.

It reads English numbers of any size. For other languages the caller replaces single words by `spoken_digits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_UNITS = {w: n for n, w in enumerate("zero one two three four five six seven eight nine".split())}
_TEENS = {
    w: n
    for n, w in enumerate("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split(), 10)
}
_TENS = {w: 10 * n for n, w in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_ORDINALS = (
    {w: n for n, w in enumerate("first second third fourth fifth sixth seventh eighth ninth".split(), 1)}
    | {f"{w}th": n for w, n in _TEENS.items() if w != "twelve"}
    | {"twelfth": 12, "hundredth": 100, "thousandth": 10**3, "millionth": 10**6, "billionth": 10**9}
    | {w[:-1] + "ieth": n for w, n in _TENS.items()}
)
_NUMBER_WORDS = _UNITS.keys() | _TEENS.keys() | _TENS.keys()
_DIGITS = 15
"""A longer numeral is not combined with a following "hundred" or "thousand"."""


def numerals(tokens: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the tokens, which are in lower case, with numerals in place of runs of number words. Each comes with the
    range of tokens that it replaces.

    A run that is not a single number ("twelve thirty") becomes several numerals. Ordinals end in "th", so that "2th" is
    not the number 2.
    """
    at, last = 0, ""
    while at < len(tokens):
        numeral, after = _number(tokens, at)
        if after == at:
            numeral, after = tokens[at], at + 1
            if numeral in ("oh", "o") and last.isdecimal() and _is_number(tokens, after):
                numeral = "0"
        yield numeral, at, after
        at, last = after, numeral


def _is_number(tokens: Sequence[str], at: int) -> bool:
    return at < len(tokens) and (tokens[at] in _NUMBER_WORDS or tokens[at].isdecimal())


def _number(tokens: Sequence[str], at: int) -> tuple[str, int]:
    """Return the longest number that begins at `at`, and the place after it, which is `at` when there is none."""
    if tokens[at].isdecimal() and (len(tokens[at]) > _DIGITS or not _scaled(tokens, at + 1)):
        return tokens[at], at + 1  # unchanged, with its leading zeros
    total, current, last, scale = 0, 0, "", 10**12
    begin = at
    while at < len(tokens):
        token = tokens[at]
        if token == "and" and last in ("hundred", "scale") and at + 1 < len(tokens):
            if tokens[at + 1] not in _NUMBER_WORDS or tokens[at + 1] == "zero":
                break
            at += 1
            continue
        if token in _ORDINALS and (not last or (last == "tens" and _ORDINALS[token] < 10)):
            return f"{total + current + _ORDINALS[token]}th", at + 1
        if token == "zero":
            return ("0", at + 1) if not last else (str(total + current), at)
        if (added := _below_hundred(token, last)) is not None:
            value, last = added
            current += value
        elif token == "hundred" and last != "hundred" and current < 100 and (current or not last):
            current, last = (current or 1) * 100, "hundred"
        elif token in _SCALES and last != "scale" and _SCALES[token] < scale and (current or not last):
            scale = _SCALES[token]
            total, current, last = total + (current or 1) * scale, 0, "scale"
        else:
            break
        at += 1
    return (str(total + current), at) if at > begin else ("", begin)


def _below_hundred(token: str, last: str) -> tuple[int, str] | None:
    """Return the value that a word adds to a number whose last word is of the kind `last`, and the kind of the word.
    None: the word cannot continue the number."""
    if token.isdecimal():
        return (int(token), "unit") if not last else None
    if token in _UNITS and last in ("", "hundred", "scale", "tens"):
        return _UNITS[token], "unit"
    if last in ("", "hundred", "scale"):
        if token in _TEENS:
            return _TEENS[token], "unit"
        if token in _TENS:
            return _TENS[token], "tens"
    return None


def _scaled(tokens: Sequence[str], at: int) -> bool:
    return at < len(tokens) and (tokens[at] == "hundred" or tokens[at] in _SCALES)
