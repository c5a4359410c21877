"""The forced aligner beside the library's own, on a small model with random weights; and the words of a text."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3ASRProcessor
from transformers.models.qwen3_asr import processing_qwen3_asr

from asr import languages
from asr.engines.aligner import AlignRequest
from asr.engines.qwen.aligner import QwenAligner, locate, monotone, split, usable
from audio.codecs.g711 import alaw_encode, ulaw_decode
from lab.engine.aligner_models import library, loaded, random_aligner
from lab.engine.qwen_models import noise

TEXTS = {
    "en": "Well, it's 3.14 o’clock: the well-known U.S. number (0800) rings.",
    "de": "Größe und Straße, „genau“ 12,5 Prozent!",
    "fr": "L'été, c'est déjà fini ? Voilà.",
    "ru": "Здравствуйте, меня зовут Анна.",
    "zh": "你好，我的号码是 one two 三。",
    "yue": "唔該，我想問下。",
}


@pytest.fixture(scope="module")
def model() -> Any:
    return random_aligner(3)


@pytest.fixture(scope="module")
def aligner() -> QwenAligner:
    return QwenAligner(loaded(random_aligner(3)))  # a model of its own, which it takes over


def say(seconds: float, seed: int, language: str, form: str = "PCMU") -> AlignRequest:
    codes = noise(seconds, seed)
    if form == "PCMA":
        codes = bytes(alaw_encode(ulaw_decode(codes)))
    elif form == "L16":
        codes = np.repeat(ulaw_decode(codes), 2).astype("<i2").tobytes()
    return AlignRequest(form, codes, TEXTS[language], language)  # type: ignore[arg-type]


def check(aligner: QwenAligner, model: Any, spoken: list[AlignRequest]) -> None:
    for each, found in zip(spoken, aligner.align(spoken), strict=True):
        theirs, chances = library(model, each)
        mine = [(word.start_ms, word.end_ms) for word in found]
        assert mine == [(round(1000 * w["start_time"]), round(1000 * w["end_time"])) for w in theirs]
        assert [placed.token for placed in split(each.text, each.language)] == [w["text"] for w in theirs]
        flat = [time for pair in mine for time in pair]
        assert flat == sorted(flat)
        sure = [float(chances[at, round(time / 80)]) for at, time in enumerate(flat)]
        expected = [min(pair) for pair in zip(sure[::2], sure[1::2], strict=True)]
        assert [word.confidence for word in found] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("seconds", [0.012, 0.4, 0.5, 0.99, 1.0, 1.01, 3.3, 7.99, 8.0, 8.1, 16.5])
def test_times_are_those_of_the_library(aligner: QwenAligner, model: Any, seconds: float) -> None:
    check(aligner, model, [say(seconds, round(seconds * 100), "en")])


@pytest.mark.parametrize("form", ["PCMU", "PCMA", "L16"])
def test_in_batches_of_any_lengths_and_languages(aligner: QwenAligner, model: Any, form: str) -> None:
    rng = random.Random(form)
    for size in (2, 5, 8):
        check(
            aligner, model,
            [say(rng.uniform(0.1, 9.0), rng.randrange(99), rng.choice(sorted(TEXTS)), form) for _ in range(size)],
        )  # fmt: skip


def test_the_model_hears_and_reads(aligner: QwenAligner) -> None:
    """The comparison above would not notice a reference that is blind to its input."""
    one, other = say(4.0, 1, "en"), say(4.0, 2, "en")
    assert aligner.align([one]) != aligner.align([other])
    assert len({tuple(aligner.align([say(4.0, 1, code)])[0]) for code in TEXTS}) == len(TEXTS)


def test_a_text_without_words_has_no_times(aligner: QwenAligner) -> None:
    silent = AlignRequest("PCMU", noise(1.0, 1), "… — !", "en")
    spoken = say(1.0, 1, "en")
    assert aligner.align([silent]) == [()]
    assert aligner.align([silent, spoken, silent]) == [(), aligner.align([spoken])[0], ()]


# -- words of a text ---------------------------------------------------------------------------------------------------

CHARACTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from("ab3 '’-.,你好、。\u3000é—(")
TEXT = st.text(CHARACTERS, max_size=60)


@given(TEXT)
def test_words_are_the_librarys_and_stand_in_the_text_in_order(text: str) -> None:
    library: Any = Qwen3ASRProcessor
    placed = split(text, "en")
    assert [each.token for each in placed] == library.split_words_for_alignment(None, text, "English")
    at = 0
    for each in placed:
        at = text.index(each.word, at) + len(each.word)


def test_words_are_shown_as_they_stand() -> None:
    shown = {code: [each.word for each in split(text, code)] for code, text in TEXTS.items()}
    assert shown["en"] == [
        "Well", "it's", "3.14", "o’clock", "the", "well-known", "U.S", "number", "0800", "rings",
    ]  # fmt: skip
    assert shown["de"] == ["Größe", "und", "Straße", "genau", "12,5", "Prozent"]
    assert shown["zh"] == [*"你好我的号码是", "one", "two", "三"]


@given(st.lists(st.text("ab1'é", min_size=1, max_size=4), max_size=8), st.data())
def test_any_splitters_words_are_found_again(tokens: list[str], data: st.DataObject) -> None:
    """As those that Japanese and Korean need: where they cut is theirs to say."""
    gap = st.text(" ,.。-", max_size=3)
    text = data.draw(gap) + "".join(token + data.draw(gap) for token in tokens)
    placed = locate(tokens, text)
    assert [each.token for each in placed] == tokens == [each.word for each in placed]


def test_a_splitters_own_spelling_is_shown_when_it_is_not_that_of_the_text() -> None:
    assert [each.word for each in locate(["ABC", "1", "2"], "ＡＢＣ、１２。")] == ["ＡＢＣ", "１", "２"]
    assert [each.word for each in locate(["will", "not"], "won't")] == ["will", "not"]


@given(st.lists(st.integers(0, 12).map(lambda each: each * 80.0), max_size=24))
def test_times_are_repaired_as_in_the_library(times: list[float]) -> None:
    repaired = monotone(times)
    assert repaired == sorted(repaired)
    if times:
        assert repaired == processing_qwen3_asr._fix_timestamps(np.array(times, np.float32))


def test_languages_are_the_librarys_and_those_that_lack_a_splitter_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = {languages.name(code) for code in languages.ALIGNED}
    assert named == processing_qwen3_asr.FORCED_ALIGNER_LANGUAGES
    monkeypatch.setattr(languages, "find_spec", lambda name: None)
    assert set(languages.ALIGNED) - set(languages.alignable()) == {"ja", "ko"}
    monkeypatch.setattr(languages, "find_spec", lambda name: object() if name == "nagisa" else None)
    assert set(languages.ALIGNED) - set(languages.alignable()) == {"ko"}
    monkeypatch.setitem(sys.modules, "nagisa", None)
    monkeypatch.setattr(processing_qwen3_asr, "is_nagisa_available", lambda: True)
    assert "ja" not in usable() and "en" in usable(), "it is there, and does not work"
