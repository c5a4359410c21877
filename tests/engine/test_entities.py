"""`make words WORDS=--entities`: what is said, and the values that are read out of texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.entities import speech
from benchmarks.entities.numbers import clips, year
from benchmarks.entities.run import Answer, rows, table
from benchmarks.entities.sets import COUNT, LANGUAGES, RECORDED, entities
from benchmarks.entities.values import PARSERS
from mediaworker.policy.inverse_normalisation import with_digits

HERE = tuple(language for language in LANGUAGES if not {*speech.missing((language,))} - {"espeak-ng", "flite"})
"""The languages whose recordings are on this machine: `make test` installs those of English alone."""


@pytest.mark.parametrize(
    ("kind", "language", "text", "value"),
    [
        ("digits", "en", "It is 555-1234.", "5551234"),
        ("digits", "fr", "06 12 34", "061234"),
        ("digits", "en", "five five five", None),
        ("amount", "en", "That is $1,234.56.", "123456"),
        ("amount", "en", "25 dollars and 50 cents", "2550"),
        ("amount", "en", "25 dollars 50", "2550"),
        ("amount", "en", "75 cents", "75"),
        ("amount", "es", "1.234,56 €", "123456"),
        ("amount", "fr", "1 186 euros et 37 centimes", "118637"),
        ("amount", "de", "12,50 Euro", "1250"),
        ("amount", "it", "12 euro e 50 centesimi", "1250"),
        ("amount", "en", "twelve dollars", None),
        ("date", "en", "November 23rd, 1984", "1984-11-23"),
        ("date", "en", "on 11/23/1984", "1984-11-23"),
        ("date", "de", "am 23. März 1984", "1984-03-23"),
        ("date", "fr", "le 23 août 2012", "2012-08-23"),
        ("date", "es", "23/11/1984", "1984-11-23"),
        ("date", "en", "November 23rd", None),
        ("spelled name", "en", "S-M-I-T-H.", "smith"),
        ("spelled name", "en", "s m i t h", "smith"),
        ("spelled name", "de", "K R Ü G E R", "kruger"),
        ("spelled name", "en", "SMITH", "smith"),
        ("spelled name", "en", "see my tea", None),
        ("e-mail", "en", "peter.brown@example.com", "peter.brown@example.com"),
        ("e-mail", "en", "P, E, T, E, R at B R O W N Dot C O M.", "peter@brown.com"),
        ("e-mail", "de", "Anna Punkt Weber at Beispiel Punkt de.", "anna.weber@beispiel.de"),
        ("e-mail", "en", "peter at home", None),
        ("address", "en", "42 Baker St.", "baker street 42"),
        ("address", "de", "Haupt-Straße 12", "hauptstrasse 12"),
        ("address", "en", "Baker Street", None),
    ],
)
def test_values_are_read_as_a_program_would(kind: str, language: str, text: str, value: str | None) -> None:
    assert PARSERS[kind](text, language) == value


@given(st.text(max_size=60), st.sampled_from(sorted(PARSERS)), st.sampled_from(LANGUAGES))
def test_any_text_has_a_value_or_none(text: str, kind: str, language: str) -> None:
    assert PARSERS[kind](text, language) != ""


@given(st.text("0123456789 ,.$€-@", max_size=30), st.sampled_from(sorted(PARSERS)), st.sampled_from(LANGUAGES))
def test_any_digits_have_a_value_or_none(text: str, kind: str, language: str) -> None:
    assert PARSERS[kind](text, language) != ""


@pytest.mark.parametrize("language", HERE)
def test_entities_are_always_the_same_and_their_texts_have_their_values(language: str) -> None:
    found = entities(language)
    assert found == entities(language) and len(found) == COUNT * len(PARSERS)
    for entity in found:
        assert entity.recorded != bool(entity.text) and (language in RECORDED or entity.text)
        text = with_digits(speech.said(entity), language)
        assert PARSERS[entity.kind](text, language) == entity.value, text


@pytest.mark.parametrize("language", sorted({*HERE} & {*RECORDED}))
def test_the_clips_of_every_number_are_recorded_and_say_it(language: str) -> None:
    there = {path.stem for path in (speech.SOUNDS / speech.VOICES[language] / "digits").glob("*.wav")}
    top = 100 if language == "it" else 2000  # nobody has checked what the Italian hundreds say
    for number in [*range(top), *range(2000, 2030)] if language != "it" else range(top):
        assert set(clips(number, language)) <= there, number
    assert set(year(1984, "en")) <= there or language != "en"


def test_a_sound_is_as_long_as_its_clips_and_always_the_same() -> None:
    first = next(entity for entity in entities("en") if entity.kind == "digits")
    assert (speech.sound(first) == speech.sound(first)).all()
    assert 0.3 * len(first.clips) < len(speech.sound(first)) / speech.rate_hz(first) < 1.2 * len(first.clips)
    assert speech.missing(("de",)) or abs(speech.sound(entities("de")[0])).max() > 1000


def test_a_row_counts_wrong_words_and_wrong_values() -> None:
    five, nine = (entity for entity in entities("en")[:2])
    right = " ".join(speech.said(five).split())
    answers = [Answer("E", five, right, right, 0.1), Answer("E", nine, speech.said(nine), "no idea", 0.1)]
    [row] = rows(answers)
    assert (row.count, row.wrong, row.wrong_digits) == (2, 2, 1)
    assert row.words == len(five.value) + len(nine.value) and row.word_errors == len(nine.value)
    assert table([row]).splitlines()[-1].startswith("| E | en | digits | recorded | 2 | ")
