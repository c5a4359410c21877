"""Text of languages other than English as the words that were spoken. Pure; see `normalise`.

Accents are kept: a word with another accent is another word. What a language writes in two ways and says in one is
written in one way: ё as е, œ as oe, ß as ss, an article before its apostrophe as a word of its own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.word_errors.numbers import numerals


@dataclass(frozen=True)
class Rules:
    symbols: Mapping[str, str]
    """Read aloud."""
    point: str
    """Between the digits of a decimal number."""
    dot: str
    """In an address."""
    thousands: str
    """Characters, as in a regular expression, that group digits by three."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Words that are written in two ways."""
    letters: Mapping[str, str] = field(default_factory=dict)
    """Characters that are written in two ways."""
    patterns: tuple[tuple[re.Pattern[str], str], ...] = ()
    """What is written otherwise than in words, before anything else is replaced; the text is in lower case."""


_GRAVE = "aeiou", "àèìòù"
RULES = {
    "es": Rules(
        {"*": "asterisco", "#": "número", "&": "y", "%": "por ciento", "@": "arroba", "+": "más", "€": "euros",
         "$": "dólares"},
        "punto", "punto", ".,",
        {"sólo": "solo", "éste": "este", "ésta": "esta", "ése": "ese", "ésa": "esa", "ok": "okay"},
        patterns=((re.compile(r"\bn[º°]\.?"), " número "),),
    ),
    "fr": Rules(
        {"*": "étoile", "#": "dièse", "&": "et", "%": "pour cent", "@": "arobase", "+": "plus", "€": "euros",
         "$": "dollars"},
        "virgule", "point", r"\s", {"clef": "clé", "plaît": "plait", "ok": "okay", "m": "monsieur"},
        {"œ": "oe", "æ": "ae"},
        patterns=((re.compile(r"\bn°"), " numéro "), (re.compile(r"\b1(?:er|re|ère)\b"), " premier ")),
    ),
    "it": Rules(
        {"*": "asterisco", "#": "cancelletto", "&": "e", "%": "per cento", "@": "chiocciola", "+": "più", "€": "euro",
         "$": "dollari"},
        "virgola", "punto", ".", {"ok": "okay", "percento": "per cento"},
        {"á": "à", "é": "è", "í": "ì", "ó": "ò", "ú": "ù"},
        # An accent that was typed as an apostrophe: E' occupata.
        patterns=tuple((re.compile(rf"{plain}'(?![^\W\d_])"), grave) for plain, grave in zip(*_GRAVE, strict=True)),
    ),
    "ru": Rules(
        {"*": "звездочка", "#": "решетка", "&": "и", "%": "процентов", "@": "собака", "+": "плюс", "€": "евро",
         "$": "долларов", "№": "номер"},
        "запятая", "точка", r"\s", {}, {"ё": "е"},
    ),
    "de": Rules(
        {"*": "Stern", "#": "Raute", "&": "und", "%": "Prozent", "@": "at", "+": "plus", "€": "Euro", "$": "Dollar"},
        "Komma", "Punkt", ".", {"ok": "okay", "nr": "nummer"}, {"ß": "ss"},
    ),
}  # fmt: skip

_ACRONYM = re.compile(r"\b(?:[^\W\d_]\.){2,}(?:[^\W\d_]\b)?")
_DECIMAL = re.compile(r"(?<![\d.,])(\d+)[.,](\d+)(?![.,]?\d)")
_DOT = re.compile(r"(?<=[^\W\d_])\.(?=[^\W\d_])")
_WORD = re.compile(r"\d+|[^\W\d_]+")


def words(text: str, language: str) -> list[str]:
    """The words of a text, to be compared with another's."""
    rules = RULES[language]
    text = text.lower().replace("\u2019", "'").replace("`", "'")
    for pattern, instead in rules.patterns:
        text = pattern.sub(instead, text)
    for symbol, spoken in rules.symbols.items():
        if symbol in "$€":  # read behind the amount
            text = re.sub(rf"[{symbol}]\s?(\d+(?:[.,]\d+)?)", rf"\1 {spoken} ", text)
        text = text.replace(symbol, f" {spoken} ")
    text = unicodedata.normalize("NFKC", text).lower()
    text = _ACRONYM.sub(lambda found: found[0].replace(".", "") + " ", text)
    text = re.sub(
        rf"(?<!\d)\d{{1,3}}(?:[{rules.thousands}]\d{{3}})+(?!\d)", lambda found: re.sub(r"\D", "", found[0]), text
    )
    text = _DECIMAL.sub(rf"\1 {rules.point} \2".lower(), text)
    text = _DOT.sub(f" {rules.dot} ".lower(), text)
    for letter, instead in rules.letters.items():
        text = text.replace(letter, instead)
    found = [part for word in _WORD.findall(text) for part in rules.spellings.get(word, word).split()]
    return list(numerals(found, language))
