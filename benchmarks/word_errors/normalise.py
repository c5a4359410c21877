"""Text as the words that were spoken, so that spelling is not counted as an error. Pure.

Case and punctuation go, contractions are written out, numbers become numerals whichever way they were written, and
symbols that people read aloud become their words. What differs only in spaces ("black list", "1 2 3 4" for "1234") is
left to `align`, which compares across word borders.
"""

from __future__ import annotations

import re
import unicodedata

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

_SYMBOLS = {"*": "star", "#": "pound", "&": "and", "%": "percent", "@": "at", "+": "plus"}
_NOT_SAID_IN_FULL = {
    "can't": "can not", "cannot": "can not", "won't": "will not", "shan't": "shall not", "let's": "let us",
    "y'all": "you all", "ma'am": "madam", "o'clock": "oclock",
}  # fmt: skip
_ENDINGS = (("n't", " not"), ("'m", " am"), ("'re", " are"), ("'ve", " have"), ("'ll", " will"))
_BEFORE_IS = {"it", "that", "there", "here", "what", "who", "where", "how", "he", "she"}
"""Behind other words, 's is a possessive."""
_SPELLINGS = {
    "thru": "through", "ok": "okay", "dialled": "dialed", "dialling": "dialing", "cancelled": "canceled",
    "cancelling": "canceling", "programme": "program", "centre": "center", "colour": "color", "grey": "gray",
    "goodby": "goodbye", "mister": "mr",
}  # fmt: skip

_ACRONYM = re.compile(r"\b(?:[a-z]\.){2,}(?:[a-z]\b)?")
_THOUSANDS = re.compile(r"\b\d{1,3}(?:,\d{3})+\b")
_MONEY = re.compile(r"\$\s?(\d+(?:\.\d+)?)")
_DECIMAL = re.compile(r"(?<=\d)\.(?=\d)")
_ORDINAL = re.compile(r"\b(\d+)(?:st|nd|rd|th)\b")
_DOT = re.compile(r"(?<=[a-z])\.(?=[a-z])")
_WORD = re.compile(r"\d+th\b|\d+|[^\W\d_]+(?:'[^\W\d_]+)*")


def words(text: str) -> list[str]:
    """The words of a text, to be compared with another's. Ordinals end in "th", so that "2th" is not the number 2."""
    text = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'").replace("`", "'")
    text = _ACRONYM.sub(lambda found: found[0].replace(".", "") + " ", text)
    text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    text = _MONEY.sub(r"\1 dollars", text)
    text = _DECIMAL.sub(" point ", text)
    text = _ORDINAL.sub(r"\1th", text)
    text = _DOT.sub(" dot ", text)
    for symbol, spoken in _SYMBOLS.items():
        text = text.replace(symbol, f" {spoken} ")
    found = [part for word in _WORD.findall(text) for part in _written_out(word)]
    return _numerals(found)


def _written_out(word: str) -> list[str]:
    if (whole := _NOT_SAID_IN_FULL.get(word)) is not None:
        return whole.split()
    for ending, full in _ENDINGS:
        if word.endswith(ending) and len(word) > len(ending):
            return (word.removesuffix(ending) + full).split()
    if word.endswith("'s") and word[:-2] in _BEFORE_IS:
        return [word[:-2], "is"]
    word = word.replace("'", "")
    return [_SPELLINGS.get(word, word)]


def _numerals(tokens: list[str]) -> list[str]:
    """Runs of number words as numerals; a run that is no single number ("twelve thirty") becomes several."""
    out: list[str] = []
    at = 0
    while at < len(tokens):
        numeral, after = _number(tokens, at)
        if after > at:
            out.append(numeral)
            at = after
            continue
        token = tokens[at]
        if token in ("oh", "o") and out and out[-1].isdecimal() and _is_number(tokens, at + 1):
            token = "0"
        out.append(token)
        at += 1
    return out


def _is_number(tokens: list[str], at: int) -> bool:
    return at < len(tokens) and (tokens[at] in _NUMBER_WORDS or tokens[at].isdecimal())


def _number(tokens: list[str], at: int) -> tuple[str, int]:
    """The longest number that begins at `at`, and where it ends; `at` when none does."""
    if tokens[at].isdecimal() and not _scaled(tokens, at + 1):
        return tokens[at], at + 1  # as it is, with its leading zeros
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
    """What a word adds to the number before it, whose last word is of the kind `last`, and its own kind."""
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


def _scaled(tokens: list[str], at: int) -> bool:
    return at < len(tokens) and (tokens[at] == "hundred" or tokens[at] in _SCALES)
