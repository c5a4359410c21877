"""Text as the words that were spoken, so that spelling is not counted as an error. Pure.

Case and punctuation go, contractions are written out, numbers become numerals whichever way they were written, and
symbols that people read aloud become their words. What differs only in spaces ("black list", "1 2 3 4" for "1234") is
left to `align`, which compares across word borders. This file has the rules of English; `languages` has the others.
"""

from __future__ import annotations

import re
import unicodedata

from benchmarks.word_errors import languages
from mediaworker.policy.numerals import numerals

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


def words(text: str, language: str = "en") -> list[str]:
    """The words of a text, to be compared with another's. Ordinals end in "th", so that "2th" is not the number 2."""
    if language != "en":
        return languages.words(text, language)
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
    return [numeral for numeral, _, _ in numerals(found)]


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
