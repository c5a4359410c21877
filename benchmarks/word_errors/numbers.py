"""Number words of Spanish, French, Italian, Russian and German as numerals, so that "cinco" and "5" are the same word.
Pure. English numbers are read by `mediaworker.policy.numerals`.

A language is a table of all its numbers below a limit, as the words that are spoken, and its words for thousands and
millions. Articles ("una", "une", "eine") stay words; "un" and "uno" are the numeral where people count with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

_CEILING, _DIGITS = 10**12, 13
"""A numeral of so much, or of so many digits, is not multiplied by a word behind it."""


@dataclass(frozen=True)
class Numbers:
    values: Mapping[tuple[str, ...], int]
    """Every number below the limit, by its words."""
    scales: Mapping[str, int]
    """Words that multiply the number before them, and stand for themselves without one."""
    longest: int
    """Words of the longest key of `values`."""


def numerals(tokens: Sequence[str], language: str) -> Iterator[str]:
    """The tokens, which are in lower case, with numerals in place of number words."""
    known, at = numbers(language), 0
    while at < len(tokens):
        value, after = _number(tokens, at, known)
        # A numeral alone keeps its leading zeros.
        yield tokens[at] if after == at or (after == at + 1 and tokens[at].isdecimal()) else str(value)
        at = max(after, at + 1)


def _number(tokens: Sequence[str], at: int, known: Numbers) -> tuple[int, int]:
    """The longest number that begins at `at`, and the place after it, which is `at` when there is none."""
    total, ceiling = 0, _CEILING
    while at < len(tokens):
        group, after = _group(tokens, at, known)
        scale = known.scales.get(tokens[after], 0) if after < len(tokens) else 0
        if 1 < scale < ceiling and group < _CEILING and (after > at or scale < 10**6):
            total += (group if after > at else 1) * scale
            ceiling, at = scale, after + 1
        elif after == at or group == 0 < total or group >= ceiling:
            break
        else:
            return total + group, after
    return total, at


def _group(tokens: Sequence[str], at: int, known: Numbers) -> tuple[int, int]:
    if tokens[at].isdecimal():
        return min(int(tokens[at][:_DIGITS]), _CEILING), at + 1
    for length in range(min(known.longest, len(tokens) - at), 0, -1):
        if (value := known.values.get(tuple(tokens[at : at + length]))) is not None:
            return value, at + length
    return 0, at


@cache
def numbers(language: str) -> Numbers:
    spoken, limit, scales = _LANGUAGES[language]
    values = {tuple(words.split()): n for n in reversed(range(limit)) for words in spoken(n)}
    return Numbers(values, scales, max(map(len, values)))


def _spanish(n: int) -> Iterator[str]:
    if n >= 100:
        for head in ("cien", "ciento") if n < 200 else _ES_HUNDREDS[n // 100]:
            yield from (f"{head} {rest}" for rest in _spanish(n % 100)) if n % 100 else (head,)
    elif n < 30:
        yield from _ES_UNITS[n].split("/")
    elif n % 10 == 0:
        yield _ES_TENS[n // 10 - 3]
    else:
        yield from (f"{_ES_TENS[n // 10 - 3]} y {unit}" for unit in _ES_UNITS[n % 10].split("/"))
        if n % 10 == 1:
            yield f"{_ES_TENS[n // 10 - 3]} y una"


_ES_UNITS = (
    "cero un/uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis/dieciseis "
    "diecisiete dieciocho diecinueve veinte veintiuno/veintiún/veintiun/veintiuna veintidós/veintidos "
    "veintitrés/veintitres veinticuatro veinticinco veintiséis/veintiseis veintisiete veintiocho veintinueve"
).split()
_ES_TENS = "treinta cuarenta cincuenta sesenta setenta ochenta noventa".split()
_ES_HUNDREDS = {
    n: (f"{stem}os", f"{stem}as")
    for n, stem in enumerate(
        "doscient trescient cuatrocient quinient seiscient setecient ochocient novecient".split(), 2
    )
}


def _french(n: int) -> Iterator[str]:
    if n >= 100:
        head = f"{_FR_UNITS[n // 100]} " if n >= 200 else ""
        if n % 100:
            yield from (f"{head}{cent} {rest}" for rest in _french(n % 100) for cent in ("cent", "cents"))
        else:
            yield from (f"{head}cent", f"{head}cents")
    elif n < 20:
        yield _FR_UNITS[n] if n < 17 else f"dix {_FR_UNITS[n - 10]}"
    elif n < 60 or n in (60, 80):
        tens = _FR_TENS[n // 10 - 2]
        yield from (tens, f"{tens}s") if n == 80 else (f"{tens} {_FR_UNITS[n % 10]}",) if n % 10 > 1 else ()
        if n % 10 == 1:
            yield from (f"{tens} et un", f"{tens} un", f"{tens} et une")
        elif n != 80 and n % 10 == 0:
            yield tens
    else:
        base = 60 if n < 80 else 80
        for rest in _french(n - base):
            yield f"{_FR_TENS[base // 10 - 2]} {rest}"
            if n in (61, 71):
                yield f"soixante et {rest}"


_FR_UNITS = (
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize sept huit neuf"
).split()
_FR_TENS = ["vingt", "trente", "quarante", "cinquante", "soixante", "", "quatre vingt"]


def _italian(n: int) -> Iterator[str]:
    """A number is one word, and people write it as several as well, which the alignment forgives."""
    if n >= 1000:
        head = "mille" if n < 2000 else f"{_IT_UNITS[n // 1000]}mila"
        yield from (f"{head}{rest}" for rest in _italian(n % 1000)) if n % 1000 else (head,)
    elif n >= 100:
        head = f"{_IT_UNITS[n // 100] if n >= 200 else ''}cento"
        if n % 100 == 0:
            yield head
        for rest in _italian(n % 100) if n % 100 else ():
            yield from (f"{head}{rest}", f"{head} {rest}")
            if rest.startswith("o"):
                yield f"{head[:-1]}{rest}"
    elif n < 20:
        yield _IT_UNITS[n]
    else:
        tens, unit = _IT_TENS[n // 10 - 2], n % 10
        stem = tens[:-1] if unit in (1, 8) else tens
        yield from (tens,) if not unit else (f"{stem}{_IT_UNITS[unit]}",)
        if unit == 3:
            yield f"{tens}trè"  # the normaliser writes every accent as a grave one


_IT_UNITS = (
    "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici "
    "diciassette diciotto diciannove"
).split()
_IT_TENS = "venti trenta quaranta cinquanta sessanta settanta ottanta novanta".split()


def _russian(n: int) -> Iterator[str]:
    if n >= 100:
        head = _RU_HUNDREDS[n // 100 - 1]
        yield from (f"{head} {rest}" for rest in _russian(n % 100)) if n % 100 else (head,)
    elif n < 20:
        yield from _RU_UNITS[n].split("/")
    else:
        tens = _RU_TENS[n // 10 - 2]
        yield from (f"{tens} {unit}" for unit in _RU_UNITS[n % 10].split("/")) if n % 10 else (tens,)
        if n % 10 == 1:
            yield f"{tens} одна"


_RU_UNITS = (
    "ноль/нуль один два/две три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать "
    "четырнадцать пятнадцать шестнадцать семнадцать восемнадцать девятнадцать"
).split()
_RU_TENS = "двадцать тридцать сорок пятьдесят шестьдесят семьдесят восемьдесят девяносто".split()
_RU_HUNDREDS = "сто двести триста четыреста пятьсот шестьсот семьсот восемьсот девятьсот".split()


def _german(n: int) -> Iterator[str]:
    """Below a million a number is one word. "ein" and "eine" are articles and stay words outside of it."""
    if n >= 1000:
        for head in ("tausend", "eintausend") if n < 2000 else (f"{_DE_UNITS[n // 1000]}tausend",):
            yield from (f"{head}{rest}" for rest in _german(n % 1000)) if n % 1000 else (head,)
    elif n >= 100:
        for head in ("hundert", "einhundert") if n < 200 else (f"{_DE_UNITS[n // 100]}hundert",):
            yield from (f"{head}{rest}" for rest in _german(n % 100)) if n % 100 else (head,)
    elif n < 20:
        yield from (_DE_UNITS[n], "zwo") if n == 2 else (_DE_UNITS[n],)
    else:
        tens, unit = _DE_TENS[n // 10 - 2], n % 10
        yield tens if not unit else f"{'ein' if unit == 1 else _DE_UNITS[unit]}und{tens}"


_DE_UNITS = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()
_DE_TENS = "zwanzig dreissig vierzig fünfzig sechzig siebzig achtzig neunzig".split()  # without ß, as normalised

_LANGUAGES: dict[str, tuple[Callable[[int], Iterator[str]], int, dict[str, int]]] = {
    "es": (_spanish, 1000, {"mil": 1000, "millón": 10**6, "millones": 10**6}),
    "fr": (_french, 1000, {"mille": 1000, "million": 10**6, "millions": 10**6}),
    "it": (_italian, 10_000, {"mille": 1000, "mila": 1000, "milione": 10**6, "milioni": 10**6}),
    "ru": (
        _russian, 1000,
        {"тысяча": 1000, "тысячи": 1000, "тысяч": 1000, "миллион": 10**6, "миллиона": 10**6, "миллионов": 10**6},
    ),
    "de": (_german, 10_000, {"tausend": 1000, "million": 10**6, "millionen": 10**6}),
}  # fmt: skip
LANGUAGES = tuple(_LANGUAGES)
