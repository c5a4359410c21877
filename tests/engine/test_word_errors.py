"""`make words`: its normaliser and alignment, how utterances find their prompts, and what it refuses."""

from __future__ import annotations

import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.word_errors.align import align
from benchmarks.word_errors.normalise import words
from benchmarks.words.__main__ import main
from benchmarks.words.calls import CONDITIONS, level, plan, sound
from benchmarks.words.prompts import NoPrompts, own, recorded, sample
from benchmarks.words.score import Piece, groups, score, taken_back
from lab.media.speech import speech


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Press 3, now!", "press three now"),
        ("28.8 kilobit", "twenty-eight point eight kilobit"),
        ("dial 500", "dial five hundred"),
        ("extension 8500", "extension eighty-five hundred"),
        ("1,234 calls", "one thousand two hundred and thirty four calls"),
        ("12,000,005", "twelve million five"),
        ("100 users", "hundred users"),
        ("5 million", "five million"),
        ("user 1234", "user one two three four"),
        ("user 1234", "user twelve thirty-four"),
        ("4 0 5", "four oh five"),
        ("007", "zero zero seven"),
        ("the 21st of July", "the twenty-first of July"),
        ("the 3rd", "the third"),
        ("$5", "five dollars"),
        ("I'm sorry", "I am sorry"),
        ("that\u2019s not valid", "that is not valid"),
        ("don't", "do not"),
        ("can't", "cannot"),
        ("black list", "blacklist"),
        ("voice mail", "voicemail"),
        ("re-enter", "reenter"),
        ("A.M.", "am"),
        ("P.B.X. and PBX", "p b x and pbx"),
        ("www.asterisk.org", "www dot asterisk dot org"),
        ("press * then #", "press star then pound"),
        ("12 34", "1 2 3 4"),
        ("thru", "through"),
    ],
)
def test_what_is_spelt_otherwise_is_the_same(text: str, same: str) -> None:
    found = align(words(text), words(same))
    assert found.errors == 0 and not found.differences, (words(text), words(same))


@pytest.mark.parametrize(
    ("said", "recognised", "errors"),
    [
        ("press two", "press three", 1),
        ("press two", "press to", 1),
        ("dial 500", "dial 5", 1),
        ("the second", "the 2", 1),
        ("twenty five", "2 5", 0),
        ("press 4 or 6", "press 46", 3),
        ("your party's name", "your parties name", 1),
        ("it is", "its", 2),
        ("thank you", "", 2),
        ("", "thank you", 2),
        ("please hold the line", "please the line", 1),
        ("a blacklist entry", "black list entries", 2),
    ],
)
def test_what_is_wrong_is_counted(said: str, recognised: str, errors: int) -> None:
    assert align(words(said), words(recognised)).errors == errors


def test_differences_name_the_words() -> None:
    found = align(words("Weasels have eaten our phone system"), words("Weasels had eaten a phone system today"))
    assert [str(each) for each in found.differences] == ["have → had", "our → a", "– → today"]


LETTERS = st.lists(st.text("ab1", min_size=1, max_size=3), max_size=8)


def plain_distance(one: list[str], other: list[str]) -> int:
    """Levenshtein's, by its definition."""
    row = list(range(len(other) + 1))
    for i, mine in enumerate(one, 1):
        before, row = row, [i]
        for j, theirs in enumerate(other, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (mine != theirs)))
    return row[-1]


@given(LETTERS, LETTERS)
def test_never_more_errors_than_with_spaces_counted(one: list[str], other: list[str]) -> None:
    found = align(one, other)
    assert found.errors <= plain_distance(one, other) and found.errors == align(other, one).errors
    assert (found.errors == 0) == (not found.differences)
    if found.errors == 0:
        assert "".join(one) == "".join(other)
    assert sum(max(len(each.said), len(each.recognised)) for each in found.differences) >= found.errors


@given(st.lists(st.text("xyz", min_size=1, max_size=3), min_size=1, max_size=5))
def test_spaces_are_no_errors(parts: list[str]) -> None:
    assert align(parts, ["".join(parts)]).errors == 0 == align(["".join(parts)], parts).errors


@given(st.text())
def test_normalising_takes_any_text_and_nothing_is_left_to_normalise(text: str) -> None:
    once = words(text)
    assert all(word and " " not in word for word in once)
    assert once == words(text.upper().lower()) or not text.isascii()


def in_words(number: int) -> str:
    """As people say it."""
    names = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen".split()
    names += "fifteen sixteen seventeen eighteen nineteen".split()
    tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()
    if number < 20:
        return names[number]
    if number < 100:
        return tens[number // 10 - 2] + (f"-{names[number % 10]}" if number % 10 else "")
    for size, name in ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = number % size
            return f"{in_words(number // size)} {name}" + (
                f" and {in_words(rest)}" if 0 < rest < 100 else f" {in_words(rest)}" if rest else ""
            )
    raise AssertionError(number)


@given(st.integers(0, 10**12 - 1))
def test_a_number_in_words_is_its_numeral(number: int) -> None:
    assert words(in_words(number)) == words(str(number)) == words(f"{number:,}") == [str(number)]


def test_utterances_find_their_prompts() -> None:
    windows = [(0, 8000), (20000, 28000), (40000, 48000), (60000, 68000)]
    # Two in the first; one over the second and third; one in the pause, nearest to the last.
    pieces = [(100, 3000), (4000, 7900), (21000, 47000), (56000, 58000)]
    assert groups(windows, pieces) == [([0], [0, 1]), ([1, 2], [2]), ([3], [3])]
    assert groups(windows, []) == [([0], []), ([1], []), ([2], []), ([3], [])]


def test_the_path_has_to_answer_for_what_it_changes() -> None:
    windows = [(0, 8000), (20000, 28000)]
    cut = [Piece(0, 8000, "hello world"), Piece(20000, 24000, "thank you"), Piece(25000, 28000, "all")]
    live = [Piece(0, 8000, "hello word"), Piece(20000, 28000, "thank you all")]
    texts, whole = ["Hello, world!", "Thank you all"], ["hello world", "thank all"]
    first, second = score(["a", "b"], texts, windows, whole, cut, live)
    assert (first.offline_errors, first.cut_errors, first.live_errors, first.added_words) == (0, 0, 1, 1)
    assert first.why == "the same utterances, another text"
    assert (second.offline_errors, second.cut_errors, second.live_errors, second.added_words) == (1, 0, 0, 0)
    assert (second.utterances, second.why, second.late_ms) == (1, "", 0)
    late = Piece(0, 8000, "word", lost_ms=80)
    (one,) = score(["a"], ["Hello, world!"], windows[:1], ["hello world"], [replace(cut[0], lost_ms=20)], [late])
    assert (one.late_ms, one.added_words) == (60, 2) and one.why.startswith("60 ms of audio came too late")


def test_words_that_a_partial_takes_back() -> None:
    shown = ["please", "please hold", "Please, hold the", "please told the line", "please told the"]
    assert taken_back(shown) == (4, 2)
    assert taken_back([]) == taken_back(["one"])[:1] + (0,) == (0, 0)


def test_prompts_are_those_with_words() -> None:
    found = recorded()
    names = [prompt.name for prompt in found]
    assert 250 < len(found) < 350 and "tt-weasels" in names and not {"beep", "silence/1", "digits/1"} & set(names)
    assert all(len(prompt.said) >= 1 and prompt.length_s >= 1 for prompt in found)
    some = sample(found, 0.1)
    assert 25 < len(some) < 35 and {prompt.name for prompt in some} < set(names)
    plans = plan(some, 4)
    assert sorted(part.prompt.name for each in plans for part in each.parts) == [prompt.name for prompt in some]
    for each in plans:
        assert all(before.end < after.start for before, after in zip(each.parts, each.parts[1:], strict=False))


@pytest.mark.parametrize(
    ("name", "rate_hz"), [("babble-10", 8000), ("babble-10", 16000), ("car-10", 16000), ("car-20", 8000)]
)
def test_noise_is_as_loud_as_it_says(name: str, rate_hz: int) -> None:
    prompts = sample(recorded(), 0.05)
    (call,) = plan(prompts[:2], 1)
    clean = sound(call, rate_hz, CONDITIONS["clean"], prompts).astype(float)
    noisy = sound(call, rate_hz, CONDITIONS[name], prompts).astype(float)
    assert abs(clean).max() < 32000 and abs(noisy).max() <= 32000
    # The loudest peak may have been brought down, and the call with it.
    gain = float(clean @ noisy / (clean @ clean))
    snr_db = 20 * np.log10(gain * level(clean, rate_hz) / level(noisy - gain * clean, rate_hz))
    assert abs(snr_db - CONDITIONS[name].snr_db) < 1.5


def test_own_recordings_have_their_text_beside_them(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(speech("tt-weasels").tobytes())
    with pytest.raises(NoPrompts, match="no recording"):
        own(tmp_path)
    (tmp_path / "a.txt").write_text("Weasels have eaten\nour phone system\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("No sound beside it", encoding="utf-8")
    (prompt,) = own(tmp_path)
    assert (prompt.name, prompt.text) == ("a", "Weasels have eaten our phone system")
    assert len(prompt.samples(16000)) == pytest.approx(2 * len(prompt.samples(8000)), abs=2)


@pytest.mark.parametrize(
    "arguments",
    [("--lines", "isdn"), ("--conditions", "rain"), ("--calls", "0"), ("--share", "2"), ("--prompts", "no-such"),
     ("--conditions", "loss-1", "--lines", "twilio"), ("--only-model",), ("--model", "/nowhere")],
)  # fmt: skip
def test_wrong_arguments_are_named(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert arguments[0] in error and error.count("\n") == 1
