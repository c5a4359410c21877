"""What is said: numbers, names and addresses of five languages, drawn with a fixed seed. Pure.

Where Asterisk's recorded digits and letters suffice, an entity is a row of their clips; the rest is a text for speech
synthesis. German has no recordings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.entities import numbers
from benchmarks.entities.values import MONTHS, address

LANGUAGES = ("en", "es", "fr", "de", "it")
RECORDED = ("en", "es", "fr", "it")
COUNT = 20
"""Entities of each kind and language; there are as many names."""
SEED = 20261127
NAMES = {
    "en": "smith johnson brown taylor walker wright hughes cooper bailey foster "
    "green turner morris parker edwards collins murphy kelly bennett carter",
    "es": "garcia lopez gomez ruiz torres navarro molina ortega castro vargas "
    "moreno romero alonso serrano blanco suarez medina cortes reyes fuentes",
    "fr": "martin bernard petit durand leroy moreau simon laurent michel garnier "
    "lefebvre roux fournier girard bonnet mercier blanc guerin boyer chevalier",
    "de": "müller schmidt weber wagner becker hoffmann schulz koch richter krüger "
    "fischer meyer bauer wolf neumann schwarz braun zimmermann hartmann lange",
    "it": "rossi russo ferrari bianchi romano colombo ricci marino greco conti "
    "bruno gallo costa giordano mancini rizzo lombardi moretti barbieri fontana",
}
FIRST = {
    "en": "anna james mary peter susan", "es": "carlos maria jose lucia pablo", "fr": "marie paul claire louis julie",
    "de": "anna peter laura thomas julia", "it": "marco giulia paolo sara luca",
}  # fmt: skip
HOSTS = {
    "en": "example dot com", "es": "ejemplo punto com", "fr": "exemple point com", "de": "beispiel Punkt de",
    "it": "esempio punto it",
}  # fmt: skip
AT = {"en": "at", "es": "arroba", "fr": "arobase", "de": "at", "it": "chiocciola"}
DOT = {"en": "dot", "es": "punto", "fr": "point", "de": "Punkt", "it": "punto"}
STREETS = {
    "en": "{n} Baker Street|{n} Church Road|{n} Park Avenue|{n} Mill Lane|{n} High Street",
    "es": "Calle Mayor {n}|Avenida del Sol {n}|Calle Nueva {n}|Plaza de España {n}|Calle San Juan {n}",
    "fr": "{n} rue de la Paix|{n} avenue de la République|{n} rue Victor Hugo|{n} place du Marché|{n} rue des Fleurs",
    "de": "Hauptstraße {n}|Bahnhofstraße {n}|Gartenweg {n}|Schulstraße {n}|Lindenallee {n}",
    "it": "Via Roma {n}|Corso Garibaldi {n}|Via Dante {n}|Piazza del Popolo {n}|Via Verdi {n}",
}
AMOUNTS = {
    "en": "{w} dollars and {c} cents", "es": "{w} euros con {c} céntimos", "fr": "{w} euros et {c} centimes",
    "de": "{w} Euro und {c} Cent", "it": "{w} euro e {c} centesimi",
}  # fmt: skip
MONTH_NAMES = {
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
}
"""With accents, where they have some."""


@dataclass(frozen=True)
class Entity:
    kind: str
    language: str
    value: str
    """As `values.PARSERS` reads it out of a right text."""
    clips: tuple[str, ...] = ()
    """Names of recorded clips; `|` is a pause between two groups."""
    text: str = ""
    """For synthesis; empty where there are clips, whose texts their package has."""

    @property
    def recorded(self) -> bool:
        return bool(self.clips)


def entities(language: str, count: int = COUNT) -> list[Entity]:
    """All entities of a language, always the same ones."""
    random = Random(f"{SEED} {language}")
    makers = [_digits, _amounts, _dates, _names, _emails, _addresses]
    return [entity for maker in makers for entity in maker(language, count, random)]


def _digits(language: str, count: int, random: Random) -> Iterator[Entity]:
    """Telephone numbers, digit by digit, in groups of three and four."""
    for _ in range(count):
        groups = ["".join(random.choices("0123456789", k=size)) for size in random.choice(((3, 4), (3, 3, 4)))]
        value = "".join(groups)
        if language in RECORDED:
            yield Entity("digits", language, value, _in_groups([[f"digits/{each}" for each in g] for g in groups]))
        else:
            yield Entity("digits", language, value, text=", ".join(" ".join(group) for group in groups) + ".")


def _amounts(language: str, count: int, random: Random) -> Iterator[Entity]:
    """Half of them whole, from recordings; the other half with cents."""
    for at in range(count):
        whole, part = random.randint(11, 99 if language == "it" else 1900), random.randint(11, 99)
        if at % 2 and language in RECORDED:
            names = [f"digits/{each}" for each in numbers.clips(whole, language)]
            unit = "digits/euros" if language == "it" else "digits/dollars"
            yield Entity("amount", language, str(100 * whole), (*names, unit))
        else:
            text = AMOUNTS[language].format(w=whole, c=part)
            yield Entity("amount", language, str(100 * whole + part), text=f"{text}.")


def _dates(language: str, count: int, random: Random) -> Iterator[Entity]:
    names = MONTH_NAMES.get(language, MONTHS[language]).split()
    for _ in range(count):
        year = random.choice((random.randint(1951, 1999), random.randint(2011, 2026)))
        month, day = random.randint(1, 12), random.randint(2, 28)
        value = f"{year}-{month:02}-{day:02}"
        if language in ("en", "es", "fr"):
            yield Entity("date", language, value, tuple(f"digits/{each}" for each in _date(language, year, month, day)))
        else:
            yield Entity("date", language, value, text=f"{day}{'.' * (language == 'de')} {names[month - 1]} {year}.")


def _date(language: str, year: int, month: int, day: int) -> list[str]:
    name, years = f"mon-{month - 1}", numbers.year(year, language)
    if language == "en":
        ordinal = [f"h-{day}"] if day <= 20 else ["20", f"h-{day % 10}"]
        return [name, *ordinal, *years]
    if language == "es":
        return [*numbers.clips(day, language), "es-de", name, "es-de", *years]
    return [*numbers.clips(day, language), name, *years]


def _names(language: str, count: int, random: Random) -> Iterator[Entity]:
    for name in random.sample(NAMES[language].split(), count):
        if language in RECORDED:
            yield Entity("spelled name", language, name, tuple(f"letters/{each}" for each in name))
        else:
            value = name.replace("ü", "u")
            yield Entity("spelled name", language, value, text=", ".join(name.upper()) + ".")


def _emails(language: str, count: int, random: Random) -> Iterator[Entity]:
    """Half of them spelled, from recordings; the other half said in words."""
    for at, name in enumerate(random.sample(NAMES[language].split(), count)):
        first, last = random.choice(FIRST[language].split()), name.replace("ü", "ue")
        if at % 2 and language in ("en", "es", "fr"):
            name = [f"letters/{each}" for each in first]
            clips = (*name, "letters/at", *(f"letters/{each}" for each in last), "letters/dot")
            yield Entity("e-mail", language, f"{first}@{last}.com", (*clips, "letters/c", "letters/o", "letters/m"))
        else:
            dot = DOT[language]
            host = HOSTS[language].replace(f" {dot} ", ".")
            text = f"{first} {dot} {last} {AT[language]} {HOSTS[language]}."
            yield Entity("e-mail", language, f"{first}.{last}@{host}", text=text)


def _addresses(language: str, count: int, random: Random) -> Iterator[Entity]:
    for _ in range(count):
        text = random.choice(STREETS[language].split("|")).format(n=random.randint(2, 189))
        yield Entity("address", language, address(text, language) or "", text=f"{text}.")


def _in_groups(groups: list[list[str]]) -> tuple[str, ...]:
    return tuple(each for at, group in enumerate(groups) for each in (["|"] if at else []) + group)
