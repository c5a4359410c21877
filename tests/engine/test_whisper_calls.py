"""Who is next when Whisper's threads make calls that nobody can interrupt: finals before files, files by turns, a
suspect alone, and an error for one. With small random models: their calls take milliseconds, and say nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from asr import messages
from asr.engines.whisper import answers
from asr.engines.whisper import engine as engines
from asr.engines.whisper.engine import WhisperEngine
from asr.engines.whisper.model import Call, Decode, Detect, Encode, NetworkError, WhisperModel
from asr.inference.inference import Inference
from asr.utterance import Hypothesis, Utterance
from audio.codecs.g711 import ulaw_encode
from lab.engine.whisper_models import random_model
from lab.media.speech import speech
from lab.patience import seconds

R = 8000
CODES = bytes(ulaw_encode(speech("demo-echotest")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("whisper"))


class Watched(WhisperModel):
    """Makes a call when it may, and keeps what it was about: the length of the audio, in samples."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        super().__init__(folder, device="cpu", threads=threads)
        self.made: list[tuple[str, int]] = []
        self.broken: set[int] = set()
        """Lengths of audio that the network does not bear."""
        self.may = threading.Event()
        self.may.set()
        self.begun = threading.Semaphore(0)

    def perform(self, calls: Sequence[Call]) -> list[Any]:
        lengths = [len(call.samples) if isinstance(call, Encode) else call.sound.samples for call in calls]
        self.made += [(type(call).__name__, length) for call, length in zip(calls, lengths, strict=True)]
        self.begun.release()
        assert self.may.wait(seconds(60))
        if self.broken & set(lengths):
            raise NetworkError("ctranslate2: it does not bear this")
        return super().perform(calls)


@pytest.fixture
def model(folder: Path) -> Iterator[Watched]:
    made = Watched(folder)
    yield made
    made.may.set()


class Served:
    """An inference, and what it has answered."""

    def __init__(self, model: WhisperModel, threads: int = 1, among: Sequence[str] = ("en",)) -> None:
        self.engine = WhisperEngine(model, threads, among)
        self.inference = Inference(self.engine)
        self.heard: list[Hypothesis] = []
        self.lengths: dict[str, int] = {}

    def final(self, name: str, size: int, *, suspect: bool = False, language: str = "", live: bool = True) -> None:
        """Its audio has this many bytes, which tells its calls from others'."""
        utterance = Utterance(name, "PCMU", language, live=live, stream=name)
        self.inference.receive(messages.Open(utterance, suspect=suspect), 0.0)
        self.inference.receive(messages.Append(name, 0, CODES[:size]), 0.0)
        self.inference.receive(messages.FinalRequest(name, 1, size, commit=True), 0.0)
        self.lengths[name] = 2 * size

    def step(self) -> bool:
        work = self.inference.choose(10.0)
        if work is None:
            return False
        for message in self.inference.perform(work, 10.0):
            if isinstance(message, messages.Heard):
                self.heard.append(message.hypothesis)
        return True

    def end(self) -> None:
        while self.step():
            pass

    def turns(self, made: Sequence[tuple[str, int]]) -> list[str]:
        """Whose calls these were, one after the other."""
        by_length = {length: name for name, length in self.lengths.items()}
        return [name for name, _ in groupby(by_length[length] for _, length in made)]


def held(served: Served, model: Watched) -> None:
    """A call has begun, and does not end before `model.may` is set."""
    model.may.clear()
    served.step()
    assert model.begun.acquire(timeout=seconds(60))


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that waits for a call which may not end is over soon."""
    monkeypatch.setattr(engines, "STEP_S", 0.01)


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a random model says counts as speech."""
    monkeypatch.setattr(answers, "says_nothing", lambda **_: False)


# -- who is next -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spoken")
def test_a_final_that_comes_during_a_files_call_is_next(model: Watched) -> None:
    served = Served(model)
    served.final("file", 16_000, live=False)
    held(served, model)
    served.final("call", 16_800)
    served.step()
    assert model.made == [("Encode", 32_000)] and served.engine.under_way() == {"file"}
    model.may.set()
    served.end()
    assert served.turns(model.made) == ["file", "call", "file"]
    assert [heard.utterance_id for heard in served.heard] == ["call", "file"]
    assert not served.engine.under_way() and not served.engine._sessions and not served.engine._jobs


def test_files_take_turns(model: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """None waits until the other ones are over."""
    monkeypatch.setattr(engines, "STEP_S", 0.0)
    served = Served(model)
    for name, size in (("one", 40_000), ("two", 40_800), ("three", 41_600)):
        served.final(name, size, live=False)
    served.end()
    assert Counter(heard.utterance_id for heard in served.heard) == {"one": 1, "two": 1, "three": 1}
    turns = served.turns(model.made)
    assert len(turns) > 3, turns


def test_nothing_is_answered_twice_and_nothing_is_left(folder: Path) -> None:
    model = Watched(folder, threads=3)
    served = Served(model, threads=3, among=("en", "es"))
    for number in range(12):
        served.final(f"u{number}", 8000 + 80 * number, live=number % 3 > 0)
        served.step()
    served.end()
    assert Counter(heard.utterance_id for heard in served.heard) == {f"u{number}": 1 for number in range(12)}
    assert {heard.error for heard in served.heard} == {None}
    assert not served.engine._sessions and not served.engine._jobs and not served.engine.under_way()


def test_a_request_that_was_replaced_is_not_answered(model: Watched) -> None:
    served = Served(model)
    served.inference.receive(messages.Open(Utterance("u", "PCMU")), 0.0)
    served.inference.receive(messages.Append("u", 0, CODES[:20_000]), 0.0)
    served.inference.receive(messages.FinalRequest("u", 1, 16_000, commit=False), 0.0)
    held(served, model)
    served.inference.receive(messages.Withdraw("u"), 0.0)
    served.inference.receive(messages.FinalRequest("u", 2, 20_000, commit=True), 0.0)
    served.step()
    model.may.set()
    served.end()
    assert [(heard.revision, heard.final) for heard in served.heard] == [(2, True)]
    assert not served.engine._sessions and not served.engine._jobs


def test_an_utterance_may_close_while_its_call_is_under_way(model: Watched) -> None:
    served = Served(model)
    served.final("gone", 16_000)
    held(served, model)
    served.inference.receive(messages.CloseUtterance("gone"), 0.0)
    assert not served.engine.under_way(), "nobody is to blame for it any more"
    served.final("next", 16_800)
    model.may.set()
    served.end()
    assert [heard.utterance_id for heard in served.heard] == ["next"]
    assert ("Decode", 32_000) not in model.made, "nothing more is computed about it"


# -- a suspect ---------------------------------------------------------------------------------------------------------


def test_a_suspect_waits_for_calls_under_way_and_is_alone(model: Watched) -> None:
    served = Served(model)
    served.final("file", 16_000, live=False)
    held(served, model)
    served.final("suspect", 16_800, suspect=True)
    served.final("call", 17_600)
    for _ in range(3):
        served.step()
    assert served.turns(model.made) == ["file"] and served.inference.working == {"file"}
    model.may.set()
    seen: list[frozenset[str]] = []
    while served.step():
        seen.append(served.inference.working)
    assert all(working == {"suspect"} for working in seen if "suspect" in working), seen
    assert Counter(heard.utterance_id for heard in served.heard) == {"file": 1, "suspect": 1, "call": 1}


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_what_the_network_does_not_bear_fails_one_utterance(folder: Path, threads: int) -> None:
    model = Watched(folder, threads)
    model.broken = {32_000}
    served = Served(model, threads)
    for name, size in (("a", 15_200), ("b", 16_000), ("c", 16_800)):
        served.final(name, size)
    served.end()
    errors = {heard.utterance_id: heard.error for heard in served.heard}
    assert errors == {"a": None, "b": "ctranslate2: it does not bear this", "c": None}
    assert not served.engine._sessions and not served.engine._jobs


def test_a_language_that_the_model_does_not_know_fails_one_utterance(model: Watched) -> None:
    served = Served(model)
    served.final("a", 15_200, language="en")
    served.final("b", 16_000, language="tlh")
    served.final("c", 16_800)
    served.end()
    errors = {heard.utterance_id: heard.error for heard in served.heard}
    assert errors == {"a": None, "b": "the Whisper model does not know the language 'tlh'", "c": None}


def test_an_error_of_ours_ends_the_process(model: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts again, and replays."""
    monkeypatch.setattr(answers, "longest", lambda samples: 1 // 0)
    served = Served(model)
    served.final("a", 16_000)
    with pytest.raises(ZeroDivisionError):
        served.end()


# -- other models ------------------------------------------------------------------------------------------------------


def test_a_model_with_128_bins_is_shown_as_many(tmp_path: Path) -> None:
    """As the newest ones are."""
    model = Watched(random_model(tmp_path, mel_bins=128))
    served = Served(model, among=("en", "es"))
    served.engine.warm_up()
    served.final("u", 16_000)
    served.end()
    assert [heard.error for heard in served.heard] == [None] and ("Detect", 32_000) in model.made


def test_an_english_model_is_asked_for_no_language(tmp_path: Path) -> None:
    model = Watched(random_model(tmp_path, multilingual=False))
    assert not model.multilingual and list(model.languages) == ["en"]
    served = Served(model, among=("es", "fr"))
    served.engine.warm_up()
    served.final("unknown", 16_000)
    served.final("forced", 16_800, language="en")
    served.final("spanish", 17_600, language="es")
    served.end()
    errors = {heard.utterance_id: heard.error for heard in served.heard}
    assert errors["unknown"] is errors["forced"] is None
    assert errors["spanish"] == "the Whisper model does not know the language 'es'"
    assert not any(kind == Detect.__name__ for kind, _ in model.made)
    assert {kind for kind, _ in model.made} == {Encode.__name__, Decode.__name__}


def test_one_possible_language_is_not_asked_for(model: Watched) -> None:
    served = Served(model, among=("es",))
    served.final("u", 16_000)
    served.end()
    assert not any(kind == Detect.__name__ for kind, _ in model.made)
