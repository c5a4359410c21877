"""What is done to an engine's words: tags, loops, echoes, and how much of a hypothesis is stable."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr import languages
from asr.text import (
    DIGITS_KEPT,
    Evidence,
    clean,
    cut_repetitions,
    is_echo,
    parse_output,
    stable_prefix,
    takes_back,
    words,
)
from asr.utterance import MAX_TEXT

SPOKEN = Evidence(seconds=4.0, peak_dbfs=-20.0)
SILENCE = Evidence(seconds=4.0, peak_dbfs=-65.0)
WHISPERED = Evidence(2.0, -52.0)


@pytest.mark.parametrize(
    ("raw", "forced", "expected"),
    [
        ("language English<asr_text>Hello there.", "", ("en", "Hello there.")),
        ("language Cantonese<asr_text>你好", "", ("yue", "你好")),
        ("language Filipino<asr_text>Kumusta", "", ("fil", "Kumusta")),
        ("language None<asr_text>", "", ("", "")),
        ("language Klingon<asr_text>nuqneH", "", ("", "nuqneH")),
        ("no tag at all", "", ("", "no tag at all")),
        ("Guten Tag", "de", ("de", "Guten Tag")),
        ("", "de", ("de", "")),
        ("language English<asr_text>Hello<|im_end|>", "de", ("de", "Hello")),
        ("eins language German<asr_text>zwei", "de", ("de", "eins zwei")),
        ("one language German<asr_text>zwei", "", ("de", "zwei")),
        ("language English<asr_text>one language English<asr_text>two", "", ("en", "one two")),
        ("language English<asr_text>I speak the language English.", "", ("en", "I speak the language English.")),
    ],
)
def test_parse_output(raw: str, forced: str, expected: tuple[str, str]) -> None:
    assert parse_output(raw, forced) == expected


@given(st.text(max_size=60))
def test_no_tag_leaks(raw: str) -> None:
    _, text = parse_output(f"language English<asr_text>{raw}<asr_text>{raw}")
    assert "<asr_text>" not in text


def test_languages_are_thirty_and_map_both_ways() -> None:
    assert len(languages.QWEN3_ASR) == 30
    assert all(languages.code(name) == code for code, name in languages.QWEN3_ASR.items())
    assert languages.name("pt-BR") == "Portuguese" and languages.name("zh_TW") == "Chinese"
    assert languages.name("tlh") is None and languages.code("None") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a" * 21, "a"),
        ("a" * 20, "a" * 20),
        ("so" + "o" * 30 + " good", "so good"),
        ("thank you " * 30, "thank you "),
        ("thank you " * 19, "thank you " * 19),
        ("你好" * 40, "你好"),
        ("1" + "0" * 30, "1" + "0" * 30),
        ("call 1" + "0" * 60 + " now", "call 1" + "0" * 60 + " now"),
        ("0" * 500, "0" * DIGITS_KEPT),
        ("12 " * 200, "12 " * (DIGITS_KEPT // 3)),
        ("12 " * 40 + "ok", "12 " * (DIGITS_KEPT // 3) + "ok"),
        ("The number is 555 0100 555 0100.", "The number is 555 0100 555 0100."),
    ],
)
def test_cut_repetitions(text: str, expected: str) -> None:
    assert cut_repetitions(text) == expected


@given(st.text("ab 01.", max_size=300))
def test_cut_repetitions_shortens_or_leaves(text: str) -> None:
    cut = cut_repetitions(text)
    assert len(cut) <= len(text)
    assert set(cut) <= set(text)
    if len(text) < 21:
        assert cut == text


def test_cut_repetitions_takes_no_long_time() -> None:
    started = time.process_time()
    cut_repetitions("ab" * 5 + "".join(chr(0x4E00 + index % 5000) for index in range(50_000)))
    assert time.process_time() - started < 5.0


def test_context_in_silence_is_refused_and_in_speech_is_not() -> None:
    context = "Names: Alice Miller, Bob Kovács. Product: Zypher 3000"
    assert clean("Alice Miller, Bob Kovács.", context=context, evidence=WHISPERED) == ""
    assert clean("Bob Kovács", context=context, evidence=SPOKEN) == "Bob Kovács"
    assert clean("Bob Kovács is not in", context=context, evidence=WHISPERED) == "Bob Kovács is not in"
    assert clean("Bob Kovács is not in", evidence=SILENCE) == ""


def test_the_whole_context_is_refused_however_loud() -> None:
    context = "Names: Alice Miller, Bob Kovács"
    assert clean("names alice miller bob kovács", context=context, evidence=SPOKEN) == ""
    assert clean("Alice Miller", context="Alice Miller", evidence=SPOKEN) == "Alice Miller"


def test_previous_transcript_is_refused_where_it_cannot_have_been_said() -> None:
    previous = "I would like to speak to somebody about my last bill please"
    assert clean(previous, previous=previous, evidence=WHISPERED) == ""
    assert clean(previous, previous=previous, evidence=Evidence(0.6, -20.0)) == ""
    assert clean(previous, previous=previous, evidence=SPOKEN) == previous
    assert clean("Yes.", previous="Yes.", evidence=Evidence(0.4, -20.0)) == "Yes."


def test_echo_needs_the_words_in_their_order() -> None:
    assert is_echo("beta gamma", "alpha beta gamma", WHISPERED)
    assert not is_echo("gamma beta", "alpha beta gamma", WHISPERED)
    assert not is_echo("", "alpha", WHISPERED) and not is_echo("alpha", "", WHISPERED)
    assert is_echo("你好", "说你好吗", WHISPERED)


def test_words_of_scripts_without_spaces() -> None:
    assert words("Don't panic, 世界!") == ["don't", "panic", "世", "界"]


@pytest.mark.parametrize(
    ("previous", "current", "stable"),
    [
        ("", "hello", ""),
        ("hello", "hello", "hello"),
        ("hello wor", "hello world", "hello"),
        ("hello world", "hello world and", "hello world"),
        ("hello", "hello, you", "hello"),
        ("don", "don't", ""),
        ("call me", "calling me", ""),
        ("one two three", "one too three", "one"),
        ("one two", "one", "one"),
        ("你好世", "你好世界", "你好世"),
        ("你好是", "你好世界", "你好"),
        ("naïve é", "naïve ê", "naïve"),
        ("hello 😀 w", "hello 😀 x", "hello 😀"),
    ],
)
def test_stable_prefix(previous: str, current: str, stable: str) -> None:
    assert current[: stable_prefix(previous, current)] == stable


@pytest.mark.parametrize(
    ("previous", "current", "back"),
    [
        ("", "", False),
        ("", "one", False),
        ("one two", "One, two three.", False),
        ("one two", "one", True),
        ("one two", "one too three", True),
        ("one", "ones", True),
        ("你好", "你好吗", False),
        ("你好", "您好吗", True),
    ],
)
def test_what_takes_a_word_back(previous: str, current: str, back: bool) -> None:
    assert takes_back(previous, current) == back


@given(st.text("ab ,'你😀", max_size=30), st.text("ab ,'你😀", max_size=30))
def test_stable_prefix_is_common_and_grows_with_agreement(previous: str, current: str) -> None:
    stable = stable_prefix(previous, current)
    assert previous[:stable] == current[:stable]
    assert stable <= stable_prefix(current, current) <= len(current)


def test_a_loop_of_forty_characters_is_cut_and_a_shorter_text_is_left() -> None:
    assert cut_repetitions("ha" * 20) == "ha" and cut_repetitions("ha" * 19 + "h") == "ha" * 19 + "h"
    assert cut_repetitions("no " * 20) == "no "
    assert cut_repetitions("12" * 40) == "12" * 32, "it may have been said"
    assert cut_repetitions("x" * 21) == "x" and cut_repetitions("x" * 20) == "x" * 20


def test_words_faster_than_anybody_speaks_are_an_echo() -> None:
    previous = " ".join(f"word{number}" for number in range(20))
    for count, echo in ((17, False), (18, True)):
        said = " ".join(previous.split()[:count])
        assert is_echo(said, previous, Evidence(2.0, -20.0)) is echo
    assert is_echo("one two", "one two three", Evidence(1.0, -50.1))
    assert not is_echo("one two", "one two three", Evidence(1.0, -50.0))
    assert not clean("one", evidence=Evidence(1.0, -56.1)) and clean("one", evidence=Evidence(1.0, -56.0)) == "one"


def test_a_context_of_four_words_is_recited_when_all_of_it_is_said() -> None:
    assert clean("one two three four", context="One, two: three four", evidence=SPOKEN) == ""
    assert clean("one two three", context="One two three", evidence=SPOKEN) == "one two three"


def test_a_text_is_never_longer_than_a_message_may_be() -> None:
    said = " ".join(f"word{number}" for number in range(500_000))
    shown = clean(said, evidence=Evidence(seconds=1e6, peak_dbfs=-20.0))
    assert (
        len(shown) <= MAX_TEXT and said.startswith(shown[:-8]) and len(clean("x" * 10_000_000, evidence=SPOKEN)) <= 20
    )
