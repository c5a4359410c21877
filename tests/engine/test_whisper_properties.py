"""Whisper's finals depend on their own audio alone: not on how it arrives, on partials, on speculative finals, or on
whoever is heard at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asr.engines.whisper import base, session
from asr.engines.whisper import engine as engines
from asr.engines.whisper.engine import WhisperEngine
from asr.engines.whisper.model import WhisperModel, load, together
from asr.engines.whisper.threads import CallThreads
from asr.scheduling.request import Lane, Request
from asr.utterance import Format, Utterance
from audio.codecs.g711 import alaw_encode, ulaw_encode
from lab.media import nonspeech
from lab.media.speech import speech

AMONG = ("en", "es", "de")
CLIPS = ("word", "phrase", "a-law", "wideband", "noise", "cut")
ENDS = (0.5, 1.0)
"""Of a clip: a final may be asked for after so much of it."""
LONGEST_S = 5.0
"""Of a piece, here: the last clip is cut."""
PLACES = 3
"""Utterances at once."""
Operation = tuple[str, int, int]


@dataclass(frozen=True)
class Clip:
    format: Format
    audio: bytes
    language: str = ""
    context: str = ""

    def ends(self) -> list[int]:
        return [int(len(self.audio) * part) // 2 * 2 for part in ENDS]


@cache
def clip(number: int) -> Clip:
    match CLIPS[number]:
        case "word":
            return Clip("PCMU", bytes(ulaw_encode(speech("activated"))))
        case "phrase":
            return Clip("PCMU", bytes(ulaw_encode(speech("vm-goodbye"))), context="Zypher, goodbye")
        case "a-law":
            return Clip("PCMA", bytes(alaw_encode(speech("auth-thankyou"))), language="en")
        case "wideband":
            return Clip("L16", np.repeat(speech("vm-incorrect"), 2).astype("<i2").tobytes(), language="es")
        case "noise":
            return Clip("PCMU", nonspeech.codes(nonspeech.sounds()["coughs: 2"]))
        case _:
            return Clip("PCMU", bytes(ulaw_encode(speech("demo-echotest")[: 7 * 8000])))


@cache
def model() -> WhisperModel:
    folder = base.find()
    assert folder is not None
    return load(folder, "cpu", 3)


@cache
def engine(threads: int, most: int) -> WhisperEngine:
    """One for all histories, so that each finds what the others have left."""
    made = WhisperEngine(model(), threads, AMONG)
    made._threads = CallThreads(threads, model().perform, together, most=most)
    return made


@cache
def alone(number: int, end: int) -> tuple[str, str, object]:
    """What an engine that does nothing else makes of it, when it has all of it at once."""
    made, said = WhisperEngine(model(), 1, AMONG), clip(number)
    made.open(Utterance("u", said.format, said.language, said.context))
    made.append("u", said.audio[:end])
    request = Request("u", 1, Lane.FINAL, True, end, 0.0)
    while not (found := made.step([request])):
        pass
    return found[0].text, found[0].language, found[0].heard


@dataclass
class Spoken:
    id: str
    number: int
    received: int = 0
    asked: Request | None = None

    @property
    def clip(self) -> Clip:
        return clip(self.number)


class History:
    """Operations on an engine, and what it was asked."""

    def __init__(self, made: WhisperEngine) -> None:
        self.engine = made
        self.open: dict[int, Spoken] = {}
        self.revision = self.opened = self.finals = 0

    def apply(self, operation: Operation) -> None:
        what, place, value = operation
        spoken = self.open.get(place)
        if what == "step":
            self.step(place + 1)
        elif spoken is None:
            self.begin(place, value % len(CLIPS))
        elif what == "close":
            self.engine.close(self.open.pop(place).id)
        elif what == "append":
            self.append(spoken, value)
        elif ends := [end for end in spoken.clip.ends() if end <= spoken.received]:
            self.ask(spoken, what == "final", ends[value % len(ends)])

    def begin(self, place: int, number: int) -> None:
        self.opened += 1
        said = clip(number)
        self.open[place] = Spoken(f"u{self.opened}", number)
        self.engine.open(Utterance(f"u{self.opened}", said.format, said.language, said.context))

    def append(self, spoken: Spoken, size: int) -> None:
        """Two pieces, the first of which may end in the middle of a sample."""
        more = spoken.clip.audio[spoken.received : spoken.received + size]
        for part in (more[: size // 3], more[size // 3 :]):
            self.engine.append(spoken.id, part)
        spoken.received += len(more)

    def ask(self, spoken: Spoken, final: bool, end: int) -> None:
        """It takes the place of what was asked before, answered or not."""
        self.revision += 1
        lane = Lane.FINAL if final else Lane.PARTIAL
        spoken.asked = Request(spoken.id, self.revision, lane, final, end, 0.0)

    def step(self, times: int) -> None:
        for _ in range(times):
            asked = {spoken.id: spoken for spoken in self.open.values() if spoken.asked is not None}
            requests = sorted((each.asked for each in asked.values() if each.asked), key=lambda each: each.lane)
            runnable = [request for request in requests if self.engine.runnable(request)]
            for answer in self.engine.step(runnable[: self.engine.capabilities.batch]) if runnable else ():
                spoken = asked[answer.request.utterance_id]
                assert answer.request is spoken.asked
                spoken.asked = None
                if answer.request.final:
                    self.finals += 1
                    expected = alone(spoken.number, answer.request.end)
                    found = (answer.text, answer.language, answer.heard)
                    assert found == expected, (CLIPS[spoken.number], answer.request.end)

    def end(self) -> None:
        """All that is open is heard to its end, together."""
        for spoken in self.open.values():
            self.append(spoken, len(spoken.clip.audio))
            self.ask(spoken, True, spoken.clip.ends()[-1])
        while any(spoken.asked for spoken in self.open.values()):
            self.step(1)
        for place in list(self.open):
            self.engine.close(self.open.pop(place).id)


def operations() -> st.SearchStrategy[list[Operation]]:
    what = st.sampled_from(("append", "partial", "step", "append", "step", "final", "close"))
    size = st.sampled_from((1, 160, 999, 8000, 24000))
    return st.lists(st.tuples(what, st.integers(0, PLACES - 1), size | st.integers(0, 5)), min_size=5, max_size=20)


def spoken(name: str) -> list[Operation]:
    """A speculative final and a partial before the final, beside somebody else."""
    begin: list[Operation] = [("begin", 0, CLIPS.index(name)), ("begin", 1, CLIPS.index("word"))]
    half: list[Operation] = [("append", 0, 24_000), ("append", 1, 24_000), ("partial", 0, 0), ("step", 1, 0)]
    return [*begin, *half, ("final", 0, 0), ("final", 1, 1), ("step", 2, 0), ("step", 2, 0)]


@pytest.fixture(scope="module", autouse=True)
def short_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "LONGEST_S", LONGEST_S)
        yield


@pytest.mark.parametrize(("threads", "most"), [(1, 1), (3, 1), (1, 4)])
@settings(max_examples=3)
@given(history=operations(), step_s=st.sampled_from((0.0, 0.02, 0.05)))
@example(history=spoken("phrase"), step_s=0.0)
@example(history=spoken("wideband"), step_s=0.05)
def test_a_final_depends_on_its_own_audio_alone(
    threads: int, most: int, history: list[Operation], step_s: float
) -> None:
    run = History(engine(threads, most))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "STEP_S", step_s)
        for operation in history:
            run.apply(operation)
        run.end()
    assert run.finals >= len(run.open) and not run.engine._sessions and not run.engine._jobs


def test_the_clips_have_words_where_there_are_any() -> None:
    """Else all histories would agree on nothing."""
    for number, name in enumerate(CLIPS):
        text, language, _ = alone(number, clip(number).ends()[-1])
        assert bool(text) == bool(language) == (name != "noise"), (name, text)
    assert len(clip(CLIPS.index("cut")).audio) > LONGEST_S * 8000
