"""Numbers as the recorded clips of Asterisk's prompts: which clips are joined for a number in each language. Pure."""

from __future__ import annotations


def clips(number: int, language: str) -> list[str]:
    """The names of the clips of a number from 0 to 9,999."""
    return {"en": _english, "es": _spanish, "fr": _french, "it": _italian}[language](number)


def year(number: int, language: str) -> list[str]:
    """The clips of a year: English ones in two halves, others as a number."""
    if language != "en":
        return clips(number, language)
    return [*_english(number // 100), *_english(number % 100)]


def _english(number: int) -> list[str]:
    if number <= 20:
        return [str(number)]
    if number < 100:
        return [str(number // 10 * 10), *([str(number % 10)] if number % 10 else [])]
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    return [*_english(number // size), name, *(_english(number % size) if number % size else [])]


def _spanish(number: int) -> list[str]:
    if number < 30 or number < 100 and number % 10 == 0:
        return [str(number)]
    if number < 100:
        return [str(number // 10 * 10), "and", str(number % 10)]
    if number < 1000:
        rest = _spanish(number % 100) if number % 100 else []
        if number < 200:
            return ["100-and", *rest] if rest else ["hundred"]
        return [str(number // 100 * 100), *rest]
    thousands = _spanish(number // 1000) if number >= 2000 else []
    return [*thousands, "thousand", *(_spanish(number % 1000) if number % 1000 else [])]


def _french(number: int) -> list[str]:
    if number <= 20:
        return [str(number)]
    if number < 100:
        tens, ones = divmod(number, 10)
        if tens in (7, 9):
            tens, ones = tens - 1, ones + 10
        join = ["et"] if ones in (1, 11) and tens < 8 else []
        return [str(10 * tens), *join, *([str(ones)] if ones else [])]
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    first = _french(number // size) if number >= 2 * size else []
    return [*first, name, *(_french(number % size) if number % size else [])]


def _italian(number: int) -> list[str]:
    if number <= 20 or number < 100 and number % 10 in (0, 1, 8):
        return [str(number)]
    if number < 100:
        return [str(number // 10 * 10), str(number % 10)]
    if number < 1000:
        first = [str(number // 100)] if number >= 200 else []
        return [*first, "hundred", *(_italian(number % 100) if number % 100 else [])]
    first = [*_italian(number // 1000), "thousands"] if number >= 2000 else ["thousand"]
    return [*first, *(_italian(number % 1000) if number % 1000 else [])]
