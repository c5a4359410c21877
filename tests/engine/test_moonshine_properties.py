"""The central promise of an engine, held against Moonshine: the text of a final depends on the utterance and on its
first `end` bytes alone. Random histories of several utterances at once, on one thread and on more of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from G722 import G722
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asr.engines.moonshine import engine as engines
from asr.engines.moonshine import session
from asr.engines.moonshine.engine import MoonshineEngine
from asr.engines.moonshine.model import Model
from asr.engines.moonshine.plugin import assets
from asr.scheduling.request import Lane, Request
from asr.utterance import BYTES_PER_S, Format, Utterance
from audio.codecs.g711 import alaw_encode, ulaw_encode
from lab.media.speech import SPEECH, speech

CLIPS = ("short", "phrase", "a-law", "wideband", "hiss", "long")
"""The first two are such that a final with a partial as its draft says something else."""
ENDS = (0.3, 0.7, 1.0)
"""Of a clip: a final may be asked for after so much of it."""
LONGEST_S = 5.0
"""Of a piece, here: the long clip is cut twice."""
PLACES = 4
"""Utterances at once."""
Operation = tuple[str, int, int]


@dataclass(frozen=True)
class Clip:
    format: Format
    audio: bytes

    def ends(self, received: int) -> list[int]:
        """In bytes; on even ones, which a sample of L16 has two of."""
        found = [int(len(self.audio) * part) // 2 * 2 for part in ENDS]
        return [end for end in found if end <= received]


@cache
def clip(number: int) -> Clip:
    match CLIPS[number]:
        case "short":
            return Clip("PCMU", bytes(ulaw_encode(speech("im-sorry"))))
        case "phrase":
            return Clip("PCMU", bytes(ulaw_encode(speech("please-try-call-later"))))
        case "a-law":
            return Clip("PCMA", bytes(alaw_encode(speech("vm-incorrect"))))
        case "wideband":
            wide = G722(16000, 64000).decode((SPEECH / "agent-loggedoff.g722").read_bytes())
            return Clip("L16", np.asarray(wide, "<i2").tobytes())
        case "hiss":
            return Clip("PCMU", bytes(ulaw_encode(np.random.default_rng(1).normal(0, 500, 9000).astype(np.int16))))
        case _:
            return Clip("PCMU", bytes(ulaw_encode(speech("demo-echotest")[: 13 * 8000])))


@cache
def model() -> Model:
    folder = assets()
    assert folder is not None
    return Model(folder)


@cache
def engine(threads: int) -> MoonshineEngine:
    """One for all histories, so that each finds what the others have left."""
    return MoonshineEngine(model(), threads)


@cache
def alone(number: int, end: int) -> str:
    """What an engine that does nothing else makes of it, when it has all of it at once."""
    made, said = MoonshineEngine(model(), 1), clip(number)
    made.open(Utterance("u", said.format))
    made.append("u", said.audio[:end])
    request = Request("u", 1, Lane.FINAL, True, end, 0.0)
    while not (answers := made.step([request])):
        pass
    return answers[0].text


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

    def __init__(self, made: MoonshineEngine) -> None:
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
            self.close(place)
        elif what == "append":
            self.append(spoken, value)
        elif ends := spoken.clip.ends(spoken.received):
            self.ask(spoken, what == "final", ends[value % len(ends)])

    def begin(self, place: int, number: int) -> Spoken:
        self.opened += 1
        spoken = self.open[place] = Spoken(f"u{self.opened}", number)
        self.engine.open(Utterance(spoken.id, spoken.clip.format))
        return spoken

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
            requests = sorted((s.asked for s in asked.values() if s.asked), key=lambda each: each.lane)
            if not requests:
                return
            for answer in self.engine.step(requests[: self.engine.capabilities.batch]):
                spoken = asked[answer.request.utterance_id]
                assert answer.request is spoken.asked
                spoken.asked = None
                if answer.request.final:
                    self.finals += 1
                    expected = alone(spoken.number, answer.request.end)
                    assert answer.text == expected, (CLIPS[spoken.number], answer.request.end)

    def close(self, place: int) -> None:
        self.engine.close(self.open.pop(place).id)

    def end(self) -> None:
        """All that is open is heard to its end, together."""
        for spoken in self.open.values():
            self.append(spoken, len(spoken.clip.audio))
            self.ask(spoken, True, spoken.clip.ends(spoken.received)[-1])
        while any(spoken.asked for spoken in self.open.values()):
            self.step(1)

    def leave(self) -> None:
        for place in list(self.open):
            self.close(place)


def operations() -> st.SearchStrategy[list[Operation]]:
    """Most of them give the engine time, and audio."""
    often, seldom = ("append", "partial", "step"), ("append", "step", "final", "close")
    what = st.sampled_from((*often, *often, *seldom))
    size = st.sampled_from((1, 160, 999, 8000, 8000, 24000, 60000))
    return st.lists(st.tuples(what, st.integers(0, PLACES - 1), size | st.integers(0, 5)), min_size=10, max_size=60)


def together(name: str, size: int) -> list[Operation]:
    """Partials of a clip that comes in three pieces of `size`, and beside it one whose request is replaced half-way."""
    found: list[Operation] = [("begin", 0, CLIPS.index(name)), ("begin", 1, CLIPS.index("phrase"))]
    for which in range(len(ENDS)):
        found += [("append", 0, size), ("partial", 0, which), ("append", 1, 9000), ("partial", 1, which)]
        found += [("step", 3, 0), ("final", 1, which), *[("step", 3, 0)] * 10]
    return [*found, ("final", 0, 0), *[("step", 3, 0)] * 10]


def grown(name: str) -> list[Operation]:
    """A partial that gets its answer, before the final."""
    return [("begin", 0, CLIPS.index(name)), ("append", 0, 60_000), ("partial", 0, 1), *[("step", 3, 0)] * 20]


@pytest.fixture(scope="module", autouse=True)
def short_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "LONGEST_S", LONGEST_S)
        yield


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    assert not any(engine(threads)._sessions for threads in (1, 3))


@pytest.mark.parametrize("threads", [1, 3])
@settings(max_examples=5)
@given(history=operations(), step_s=st.sampled_from((0.0, 0.003, 0.02)))
@example(history=together("long", 35_000), step_s=0.0)
@example(history=together("wideband", 16_001), step_s=0.003)
@example(history=grown("short"), step_s=0.02)
@example(history=grown("phrase"), step_s=0.02)
def test_a_final_depends_on_its_own_audio_alone(threads: int, history: list[Operation], step_s: float) -> None:
    run = History(engine(threads))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "STEP_S", step_s)
        try:
            for operation in history:
                run.apply(operation)
            run.end()
        finally:
            run.leave()
    assert run.finals >= len(run.open)


def test_the_clips_have_words_where_there_are_any() -> None:
    """Else all histories would agree on nothing."""
    for number, name in enumerate(CLIPS):
        said = clip(number)
        text = alone(number, said.ends(len(said.audio))[-1])
        assert bool(text) == (name != "hiss"), (name, text)
        assert len(said.audio) / BYTES_PER_S[said.format] > 0.9
    assert len(clip(CLIPS.index("long")).audio) > 2 * LONGEST_S * 8000
