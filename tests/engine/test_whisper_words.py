"""Times of words by the real Whisper: as forced alignment has them, whoever wrote the text and in any format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asr import messages
from asr.engines.aligner import AlignRequest
from asr.engines.moonshine.plugin import create as create_moonshine
from asr.engines.whisper import answers, plugin
from asr.engines.whisper.aligner import WhisperAligner
from asr.engines.whisper.engine import WhisperEngine
from asr.engines.whisper.model import NetworkError
from asr.inference.inference import Inference
from asr.text import word_spans
from asr.utterance import Format, TimedWord, Utterance
from audio.codecs.g711 import alaw_encode, ulaw_encode
from config.settings import Asr, Qwen
from lab.media.speech import speech
from mediaworker.cli.play import load_pcm

ENGLISH = {
    "auth-incorrect": (
        "Password incorrect. Please enter your password followed by the pound key.",
        [(40, 680), (680, 1410), (1560, 1910), (1910, 2110), (2110, 2290), (2290, 2940), (2940, 3450), (3450, 3570),
         (3570, 3660), (3660, 4080), (4080, 4490)],
    ),
    "queue-youarenext": (
        "Your call is now first in line and will be answered by the next available representative.",
        [(50, 380), (380, 670), (670, 860), (860, 1090), (1090, 1510), (1510, 1630), (1630, 2160), (2350, 2480),
         (2480, 2630), (2630, 2780), (2780, 3160), (3160, 3300), (3300, 3420), (3420, 3780), (3780, 4210),
         (4210, 5190)],
    ),
    "call-fwd-no-ans": ("Call-Forward on No Answer.", [(110, 890), (890, 1380), (1570, 1870), (1870, 2540)]),
    "please-try-call-later": (
        "Please try your call again later.",
        [(90, 440), (440, 670), (670, 840), (840, 1120), (1120, 1470), (1470, 2120)],
    ),
}  # fmt: skip
"""Prompts, their texts, and when each word begins and ends by PocketSphinx's forced alignment, in milliseconds."""
P50_MS, P90_MS = 60, 160
SPANISH = Path("/usr/share/asterisk/sounds/es_MX_f_Allison/conf-getpin.g722")


@pytest.fixture(scope="module")
def aligner() -> WhisperAligner:
    made = plugin.create_aligner(Asr(threads=1))
    assert isinstance(made, WhisperAligner)
    return made


def codes(name: str) -> bytes:
    return bytes(ulaw_encode(speech(name)))


def timed(
    aligner: WhisperAligner, text: str, audio: bytes, language: str = "en", form: Format = "PCMU"
) -> list[TimedWord]:
    """Checked for what is true of any words."""
    request = AlignRequest(form, audio, text, language)
    (found,) = aligner.align([request])
    assert [each.word for each in found] == [text[begin:end] for begin, end in word_spans(text)]
    edges = [edge for each in found for edge in (each.start_ms, each.end_ms)]
    assert edges == sorted(edges) and edges[0] >= 0 and edges[-1] <= 1000 * request.seconds + 1
    assert all(each.start_ms < each.end_ms and 0 <= each.confidence <= 1 for each in found)
    return list(found)


def test_words_are_where_forced_alignment_has_them(aligner: WhisperAligner) -> None:
    misses_ms = []
    for name, (text, known) in ENGLISH.items():
        for word, span in zip(timed(aligner, text, codes(name)), known, strict=True):
            misses_ms += [abs(word.start_ms - span[0]), abs(word.end_ms - span[1])]
    assert np.percentile(misses_ms, 50) <= P50_MS and np.percentile(misses_ms, 90) <= P90_MS


@pytest.mark.parametrize("form", ["PCMA", "L16"])
def test_they_are_the_same_in_every_format(aligner: WhisperAligner, form: Format) -> None:
    text, _ = ENGLISH["auth-incorrect"]
    samples = speech("auth-incorrect")
    audio = bytes(alaw_encode(samples)) if form == "PCMA" else np.repeat(samples, 2).tobytes()
    for one, other in zip(
        timed(aligner, text, codes("auth-incorrect")), timed(aligner, text, audio, form=form), strict=True
    ):
        assert abs(one.start_ms - other.start_ms) <= 100 and abs(one.end_ms - other.end_ms) <= 100


def test_an_unlikely_text_is_less_sure(aligner: WhisperAligner) -> None:
    text, _ = ENGLISH["please-try-call-later"]
    audio = codes("please-try-call-later")
    wrong = timed(aligner, text.replace("again", "elephant"), audio)
    right = timed(aligner, text, audio)
    assert right[4].confidence > 0.8 > 0.1 > wrong[4].confidence


def test_other_scripts_and_bytes_that_are_several_tokens(aligner: WhisperAligner) -> None:
    spanish = bytes(ulaw_encode(load_pcm(SPANISH, 8000)))
    found = timed(aligner, "Por favor ingrese la clave de entrada para la conferencia.", spanish, "es")
    assert found[-1].word == "conferencia" and found[-1].end_ms > 0.8 * len(spanish) / 8
    timed(aligner, "Пожалуйста, повторите ваш звонок позже.", codes("please-try-call-later"), "ru")
    timed(aligner, "请稍后再拨。", codes("please-try-call-later"), "zh")


@pytest.mark.parametrize("text", ["", "...", "\N{THINKING FACE} — !"])
def test_a_text_without_words_has_none(aligner: WhisperAligner, text: str) -> None:
    assert aligner.align([AlignRequest("PCMU", codes("please-try-call-later"), text, "en")]) == [()]


def test_silence_and_shreds_end_well(aligner: WhisperAligner) -> None:
    timed(aligner, "one two three", b"\xff" * 8000)
    assert aligner.align([AlignRequest("PCMU", b"\xff" * 1600, "one", "en")]) == [()]


def test_more_than_the_network_hears_or_remembers(aligner: WhisperAligner) -> None:
    audio = codes("auth-incorrect")
    half_minute = (audio + b"\xff" * 4000) * 7
    found = timed(aligner, " ".join([ENGLISH["auth-incorrect"][0]] * 6), half_minute[: 31 * 8000])
    assert found[-1].end_ms <= 30_000
    with pytest.raises(NetworkError):
        aligner.align([AlignRequest("PCMU", audio, "one two " * answers.MOST_TOKENS, "en")])


def test_the_sound_of_a_final_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine and the aligner of a process share a model, and the audio goes through the encoder once."""
    settings = Asr(threads=1)
    engine, own = plugin.create(settings, Qwen()), plugin.create_aligner(settings)
    assert isinstance(engine, WhisperEngine) and isinstance(own, WhisperAligner) and engine._model is own._model
    made: list[str] = []
    perform = engine._model.perform

    def counted(calls):  # type: ignore[no-untyped-def]
        made.extend(type(call).__name__ for call in calls)
        return perform(calls)

    monkeypatch.setattr(engine._threads, "_perform", counted)
    monkeypatch.setattr(own._model, "perform", counted)
    audio = codes("please-try-call-later")
    inference = Inference(engine, own)
    inference.receive(messages.Open(Utterance("a", "PCMU", "en", words=True)), 0.0)
    inference.receive(messages.Append("a", 0, audio), 0.0)
    inference.receive(messages.FinalRequest("a", 1, len(audio), commit=True), 0.0)
    (heard,) = finish(inference)
    assert isinstance(heard, messages.Heard)
    inference.receive(messages.Align("a", 2, heard.hypothesis.text, "en", len(audio)), 0.0)
    (words,) = finish(inference)
    assert isinstance(words, messages.Words) and words.alignment.error is None
    assert [each.word for each in words.alignment.words] == heard.hypothesis.text.rstrip(".").split()
    assert made == ["Encode", "Decode"]


def test_words_of_a_call_wait_for_the_finals_of_others() -> None:
    """Of Moonshine's, which were asked for later."""
    inference = Inference(create_moonshine(Asr(engine="moonshine", threads=1), Qwen()), plugin.create_aligner(Asr()))
    audio = codes("please-try-call-later")
    for name in "abc":
        inference.receive(messages.Open(Utterance(name, "PCMU", words=True)), 0.0)
        inference.receive(messages.Append(name, 0, audio), 0.0)
    inference.receive(messages.FinalRequest("a", 1, len(audio), commit=True), 0.0)
    (heard,) = finish(inference)
    assert isinstance(heard, messages.Heard)
    inference.receive(messages.Align("a", 2, heard.hypothesis.text, "en", len(audio)), 0.0)
    inference.receive(messages.FinalRequest("b", 1, len(audio), commit=True), 0.0)
    inference.receive(messages.FinalRequest("c", 1, len(audio), commit=True), 0.0)
    order = [
        message.alignment.utterance_id if isinstance(message, messages.Words) else message.hypothesis.utterance_id
        for message in finish(inference)
        if isinstance(message, messages.Words | messages.Heard)
    ]
    assert order == ["b", "c", "a"]


def finish(inference: Inference) -> list[messages.FromEngine]:
    out: list[messages.FromEngine] = []
    while (work := inference.choose()) is not None:
        out += inference.perform(work)
    return out
