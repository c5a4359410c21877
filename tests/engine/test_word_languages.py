"""`make words` in other languages: numbers and symbols as they are spoken, the lists of mended texts, and the plan."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.word_errors.align import align
from benchmarks.word_errors.languages import RULES
from benchmarks.word_errors.normalise import words
from benchmarks.word_errors.numbers import LANGUAGES, numbers
from benchmarks.words import prompts, table
from benchmarks.words.__main__ import main, parser
from benchmarks.words.jobs import jobs
from benchmarks.words.mending import warped
from benchmarks.words.score import Piece, score

RECORDED = [language for language in prompts.VOICES if (prompts.SOUNDS / prompts.VOICES[language]).exists()]


@pytest.mark.parametrize(
    ("language", "text", "same"),
    [
        ("es", "Marque el número 2.", "marque el número dos"),
        ("es", "28.8 Kb", "veintiocho punto ocho kb"),
        ("es", "1,234 llamadas", "mil doscientas treinta y cuatro llamadas"),
        ("es", "extensión 1-2-3-4", "extensión 1234"),
        ("es", "5 millones", "cinco millones"),
        ("es", "ciento uno, quinientos veintiún", "101 521"),
        ("es", "$5", "cinco dólares"),
        ("es", "50 %", "cincuenta por ciento"),
        ("es", "www.asterisk.org", "www punto asterisk punto org"),
        ("es", "nº 7", "número siete"),
        ("es", "¿Sólo éste?", "solo este"),
        ("fr", "Appuyez sur 1.", "appuyez sur un"),
        ("fr", "quatre-vingt-dix-sept, soixante et onze, deux cents", "97 71 200"),
        ("fr", "quatre-vingts", "80"),
        ("fr", "1 234", "mille deux cent trente-quatre"),
        ("fr", "28,8", "vingt-huit virgule huit"),
        ("fr", "S\u2019il vous plaît, l'écho", "s il vous plait l écho"),
        ("fr", "le cœur", "le coeur"),
        ("fr", "appuyez sur #", "appuyez sur dièse"),
        ("it", "Premere 3", "premere tre"),
        ("it", "l\u2019utente", "l'utente"),
        ("it", "E' in uso, perché no? Di piu'.", "è in uso perchè no di più"),
        ("it", "ventitré, ventuno, centotto, duemilacinquecento", "23 21 108 2500"),
        ("it", "1.234", "milleduecentotrentaquattro"),
        ("it", "il tasto *", "il tasto asterisco"),
        ("ru", "Нажмите решётку", "нажмите решетку"),
        ("ru", "двести тридцать пять тысяч шестьсот", "235600"),
        ("ru", "Чтобы выйти", "что бы выйти"),
        ("ru", "наберите 600", "наберите шестьсот"),
        ("de", "Drücken Sie die 1", "drücken sie die eins"),
        ("de", "einundzwanzig, dreißig, zweihundertfünfzig", "21 30 250"),
        ("de", "3.500 Euro", "dreitausendfünfhundert Euro"),
        ("de", "Gartenstraße", "gartenstrasse"),
    ],
)
def test_what_is_spelt_otherwise_is_the_same(language: str, text: str, same: str) -> None:
    found = align(words(text, language), words(same, language))
    assert found.errors == 0, (words(text, language), words(same, language))


@pytest.mark.parametrize(
    ("language", "said", "recognised", "errors"),
    [
        ("es", "está libre", "esta libre", 1),
        ("es", "marque 2", "marque el número dos", 2),
        ("es", "una persona", "un persona", 1),
        ("fr", "a quitté", "à quitter", 2),
        ("fr", "une option", "un option", 1),
        ("it", "è ora", "e ora", 1),
        ("it", "l'utente", "lutente", 0),
        ("ru", "введите пароль", "видите пароль", 1),
        ("de", "ein Haus", "eine Haus", 1),
    ],
)
def test_what_is_wrong_is_counted(language: str, said: str, recognised: str, errors: int) -> None:
    assert align(words(said, language), words(recognised, language)).errors == errors


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_number_has_words_of_its_own(language: str) -> None:
    values = numbers(language).values
    assert set(values.values()) == set(range(max(values.values()) + 1))
    for spoken, value in values.items():
        assert words(" ".join(spoken), language) == [str(value)]


@given(st.sampled_from(LANGUAGES), st.text())
def test_any_text_can_be_normalised(language: str, text: str) -> None:
    once = words(text, language)
    assert all(word and " " not in word for word in once)
    assert words(" ".join(once), language) == once or any(word.isdecimal() for word in once)


def test_the_languages_are_the_same_everywhere() -> None:
    assert set(RULES) == set(LANGUAGES) == set(prompts.LANGUAGES) - {"en"} == set(table.NAMES) - {"en"}


@pytest.mark.parametrize("language", RECORDED)
def test_prompts_are_chosen_alike_in_every_language(language: str) -> None:
    found = prompts.recorded(language)
    names = {prompt.name for prompt in found}
    assert 240 < len(found) < 300 and not {"beep", "silence/1", "digits/1"} & names
    assert all(prompt.said and prompt.length_s >= 1 and prompt.language == language for prompt in found)


@pytest.mark.parametrize("language", RECORDED)
def test_mended_texts_belong_to_prompts_and_differ_from_theirs(language: str) -> None:
    found, known = {prompt.name: prompt for prompt in prompts.recorded(language)}, prompts.mended(language)
    for name, said in known.said.items():
        assert found[name].mended == said
        assert align(found[name].said, words(said, language)).errors, f"{name}: the list has the same words"
    printed = " ".join(prompts.texts(language).values()).lower()
    for wrong, right in known.spelling.items():
        assert wrong == wrong.lower() and wrong in printed and words(wrong, language) != words(right, language)
        assert known.spelt(f"({wrong})") == f"({right})" and known.spelt(f"x{wrong}x") == f"x{wrong}x"


@pytest.mark.parametrize("language", prompts.VOICES)
def test_mended_texts_can_be_read_without_the_recordings(language: str) -> None:
    known = prompts.mended(language)
    assert known.spelling and all(words(text, language) for text in (*known.spelling.values(), *known.said.values()))


def test_a_sound_is_nearest_to_itself_however_fast_it_is() -> None:
    one, other = (np.random.default_rng(seed).standard_normal((40, 4)) for seed in (1, 2))
    assert warped(one, one) == pytest.approx(0, abs=1e-6)
    assert warped(one, np.repeat(one, 2, axis=0)) == pytest.approx(0, abs=1e-6)
    assert warped(one, other) == pytest.approx(warped(other, one)) and warped(one, other) > 0.5


def test_a_text_with_lost_accents_is_put_right() -> None:
    known = prompts.mended("it")
    assert known.spelt("La conferenza ? piena, non pu? entrare. Posta?") == (
        "La conferenza è piena, non può entrare. Posta?"
    )


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="no espeak-ng")
def test_german_is_synthesised(tmp_path: Path) -> None:
    found = prompts.synthesised("de", tmp_path)
    assert len(found) == 60 == len({prompt.text for prompt in found})
    assert all(prompt.length_s > 1 and prompt.said for prompt in found)


def test_what_is_really_said_is_counted_beside_the_print() -> None:
    heard = [Piece(0, 8000, "marque el número dos")]
    (one,) = score(["a"], ["Marque 2"], [(0, 8000)], [""], heard, heard, mended=["Marque el número 2"], language="es")
    assert (one.words, one.live_errors, one.mended_words, one.mended_errors) == (2, 2, 4, 0)


def planned(*arguments: str) -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    args: argparse.Namespace = parser().parse_args(arguments)
    return [
        (job.language, job.name, job.asr.language, [(line, condition.name) for line, condition, _ in job.steps])
        for job in jobs(args, dict.fromkeys((args.languages or "en").split(","), 280))
    ]


def test_every_language_is_given_and_detected() -> None:
    rows = [("pcmu", name) for name in ("clean", "loss-3", "babble-20", "babble-10")]
    detected = [rows[0], rows[3]]
    assert planned("--languages", "en,es") == [
        ("en", "moonshine", "en", rows),
        ("en", "whisper", "en", rows),
        ("en", "whisper, detecting", "", rows[:1]),
        ("en", "mixed", "en", rows),
        ("en", "mixed, detecting", "", detected),
        ("es", "whisper", "es", rows),
        ("es", "whisper, detecting", "", rows[:1]),
        ("es", "mixed, detecting", "", detected),
    ]
    assert [name for _, name, *_ in planned()] == ["moonshine"] and len(planned()[0][3]) == 14
    with pytest.raises(ValueError, match="--engines: none of these knows the language 'es'"):
        planned("--languages", "es", "--engines", "moonshine")


@pytest.mark.parametrize(("option", "value"), [("--languages", "xx"), ("--engines", "vosk")])
def test_wrong_arguments_are_named(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option, value]) == 2
    assert f"{option}: there is no {value}" in capsys.readouterr().err


def test_each_language_has_its_table() -> None:
    told = table.Detected(9, 10, 2, 2)
    rows = [
        table.Row("moonshine", "SIP, PCMU", "clean", "en", 1, 100, 2, 2, 2, 0),
        table.Row("whisper", "SIP, PCMU", "clean", "es", 1, 100, 14, 14, 14, 0, (8, 110), told),
    ]
    english, spanish = table.markdown(rows).split("### Spanish")
    assert english.startswith("### English") and "mended" not in english and "language right" not in english
    assert "| 7.3 % |" in spanish and "| 90.0 %, 2 of 2 legs |" in spanish
    assert table.markdown(rows[:1]).startswith("| engine | path |")
    assert table.markdown(rows[1:]).startswith("### Spanish\n\n| engine | path |")
