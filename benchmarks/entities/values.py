"""Reads the value that a program would take out of a text: what it needs is in digits or signs, as programs read it.

None: the text has no such value. Number words are not read; `text.numerals` is measured by that. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

MONTHS = {
    "en": "january february march april may june july august september october november december",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "fr": "janvier fevrier mars avril mai juin juillet aout septembre octobre novembre decembre",
    "de": "januar februar marz april mai juni juli august september oktober november dezember",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
}
"""Without accents."""
AT = {"en": "at", "es": "arroba", "fr": "arobase|arobas|arrobas", "de": "at|ät", "it": "chiocciola|at"}
DOT = {"en": "dot|period", "es": "punto", "fr": "point", "de": "punkt", "it": "punto"}
_CENTS = r"(?:cents?|centavos?|centimos?|centimes?|centesim[io]|¢)"
_WHOLE = r"(?:dollars?|dolares|dollari|euros?|\$|€)"
_NUMBER = r"\d+(?:[., ]\d{3})*(?:[.,]\d{2})?(?!\d)"
_SHORT = {
    "st": "street", "rd": "road", "ave": "avenue", "dr": "drive", "ln": "lane", "str": "strasse", "av": "avenue",
    "avda": "avenida", "bd": "boulevard", "blvd": "boulevard", "c": "calle",
}  # fmt: skip


def plain(text: str) -> str:
    """The text in lower case, without accents."""
    text = unicodedata.normalize("NFKD", text.casefold().replace("ß", "ss").replace("\u2019", "'"))
    return "".join(each for each in text if not unicodedata.combining(each))


def digits(text: str, language: str) -> str | None:
    """All digits of the text, as of a telephone number."""
    return "".join(str(unicodedata.decimal(each)) for each in text if each.isdecimal()) or None


def cents(text: str, language: str) -> str | None:
    """An amount of money, in hundredths of the currency."""
    text = plain(text).replace("\u00a0", " ").replace("\u202f", " ")
    after = re.search(rf"({_NUMBER})\s*{_WHOLE}(?:\D{{0,6}}\b(\d{{1,2}})\b)?", text)
    before = re.search(rf"[$€]\s*({_NUMBER})", text)
    alone = re.search(rf"(?<!\d)(\d{{1,2}})\s*{_CENTS}", text)
    if before is None and after is None:
        return str(int(alone[1])) if alone is not None else None
    whole = (after or before)[1] if before is None or after is None else min(after, before, key=re.Match.start)[1]
    value = _hundredths(whole)
    if value % 100 == 0 and (part := alone[1] if alone is not None else after[2] if after is not None else None):
        value += int(part)
    return str(value)


def _hundredths(number: str) -> int:
    ends = re.search(r"[.,](\d{2})$", number)
    whole = re.sub(r"\D", "", number[: ends.start()] if ends else number)
    return 100 * int(whole) + int(ends[1] if ends else 0)


def date(text: str, language: str) -> str | None:
    """A day of a year, as ISO 8601 has it."""
    text = plain(text)
    names = MONTHS[language].split()
    month = re.search(rf"\b({'|'.join(names)})\b", text)
    year = re.search(r"(?<!\d)(?:19|20)\d{2}(?!\d)", text)
    if month is None or year is None:
        return _numeric(text, language)
    rest = text[: year.start()] + " " + text[year.end() :]
    day = re.search(r"(?<!\d)([12]\d|3[01]|0?[1-9])(?!\d)", rest)
    return f"{year[0]}-{names.index(month[1]) + 1:02}-{int(day[1]):02}" if day is not None else None


def _numeric(text: str, language: str) -> str | None:
    found = re.search(r"(?<!\d)(\d{1,2})[./-](\d{1,2})[./-]((?:19|20)\d{2})(?!\d)", text)
    if found is None:
        return None
    first, second = int(found[1]), int(found[2])
    month, day = (first, second) if language == "en" else (second, first)
    return f"{found[3]}-{month:02}-{day:02}"


def letters(text: str, language: str) -> str | None:
    """A name that was spelled: its letters, which stand alone or in capitals."""
    found = re.findall(r"[^\W\d_]+", text)
    return plain("".join(found)) if found and all(len(each) == 1 or each.isupper() for each in found) else None


def email(text: str, language: str) -> str | None:
    """An e-mail address that was spelled or said in words."""
    text = plain(text).strip(" .,!?")
    text = re.sub(rf"(?<!\w)(?:{AT[language]})(?!\w)", "@", text)
    text = re.sub(rf"(?<!\w)(?:{DOT[language]})(?!\w)", ".", text)
    text = re.sub(r"(?<=[^\W\d])[.,](?=\s)|(?<=[\w])-(?=[\w])|[,\s]", "", text)
    return text if re.fullmatch(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", text) else None


def address(text: str, language: str) -> str | None:
    """A street with its number: its words in order, without articles and abbreviations."""
    words = re.findall(r"\d+|[^\W\d_]+", plain(text))
    number = [word for word in words if word.isdecimal()]
    street = [_SHORT.get(word, word) for word in words if not word.isdecimal()]
    return f"{' '.join(street)} {' '.join(number)}".replace(" strasse", "strasse") if number and street else None


PARSERS: dict[str, Callable[[str, str], str | None]] = {
    "digits": digits, "amount": cents, "date": date, "spelled name": letters, "e-mail": email, "address": address,
}  # fmt: skip
