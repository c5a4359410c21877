"""Calls and files at Moonshine under more load than it bears: who waits, who goes without, and who never notices.

Counted in steps and in calls of the network, not in seconds: with no time to a step, each thread makes one call of the
network in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from asr import messages
from asr.engines.moonshine import engine as engines
from asr.engines.moonshine.engine import MoonshineEngine
from asr.engines.moonshine.model import Model
from asr.engines.moonshine.plugin import assets
from asr.engines.moonshine.session import MoonshineSession
from asr.inference.inference import Inference
from asr.scheduling.request import Lane
from asr.utterance import Hypothesis, Utterance
from audio.codecs.g711 import ulaw_encode
from lab.media.speech import speech

CALLS = 10
MAX_PARTIALS = 6
"""That wait; the others are shed."""
PIECE = 4000
"""Half a second, after which each call wants a partial."""
STEPS = 20
"""Of one thread, for each piece of all calls: enough for a partial or two."""
TALK, FILE = "please-try-call-later", "conf-onlyperson"


def codes(name: str) -> bytes:
    return bytes(ulaw_encode(speech(name)))


@pytest.fixture(scope="module")
def model() -> Model:
    folder = assets()
    assert folder is not None
    return Model(folder)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Of the network, by utterance."""
    made: Counter[str] = Counter()
    advance = MoonshineSession.advance

    def counted(session: MoonshineSession) -> bool:
        made[session.utterance.id] += 1
        return advance(session)

    monkeypatch.setattr(MoonshineSession, "advance", counted)
    monkeypatch.setattr(engines, "STEP_S", 0.0)
    return made


@dataclass
class Load:
    """An inference, and what was asked of it and answered."""

    inference: Inference
    steps: int = 0
    now_s: float = 0.0
    """No two calls ask at the same moment."""
    asked: dict[str, int] = field(default_factory=dict)
    """The newest revision of each utterance."""
    finals: dict[str, Hypothesis] = field(default_factory=dict)
    answered_at: dict[str, int] = field(default_factory=dict)
    """Step of the final."""
    partials: Counter[str] = field(default_factory=Counter)
    dropped: int = 0

    def open(self, name: str, *, live: bool = True) -> None:
        self.inference.receive(messages.Open(Utterance(name, "PCMU", live=live)), 0.0)
        self.asked[name] = 0

    def append(self, name: str, start: int, audio: bytes) -> None:
        self.inference.receive(messages.Append(name, start, audio), self.now_s)

    def ask(self, name: str, end: int, *, final: bool = False) -> None:
        self.asked[name] += 1
        self.now_s += 0.001
        revision = self.asked[name]
        wanted = (
            messages.FinalRequest(name, revision, end, True) if final else messages.PartialRequest(name, revision, end)
        )
        self.inference.receive(wanted, self.now_s)

    def pause(self, name: str, end: int) -> None:
        """Perhaps it is over: the endpoint fires in 340 ms."""
        self.asked[name] += 1
        self.inference.receive(messages.FinalRequest(name, self.asked[name], end, False, wanted_in_ms=340), self.now_s)

    def refresh(self, names: list[str], end: int) -> None:
        """Each of them wants a partial, always."""
        for name in names:
            if not self.inference.scheduler.pending(name):
                self.ask(name, end)

    def step(self) -> tuple[str, ...]:
        """Who was in it."""
        work = self.inference.choose(self.now_s)
        if work is None:
            return ()
        self.steps += 1
        for message in self.inference.perform(work, self.now_s):
            if isinstance(message, messages.Dropped):
                self.dropped += message.partials
                continue
            assert isinstance(message, messages.Heard)
            heard = message.hypothesis
            assert heard.revision == self.asked[heard.utterance_id], "an answer that nobody waits for any more"
            assert heard.error is None
            if heard.final:
                self.finals[heard.utterance_id], self.answered_at[heard.utterance_id] = heard, self.steps
            else:
                self.partials[heard.utterance_id] += 1
        return work.utterance_ids

    def waiting(self) -> int:
        return self.inference.scheduler.waiting(Lane.FIRST_PARTIAL) + self.inference.scheduler.waiting(Lane.PARTIAL)


def alone(model: Model, name: str, *, live: bool) -> tuple[str, int]:
    """The final of a prompt that has the engine to itself, and its steps."""
    load, audio = Load(Inference(MoonshineEngine(model, 1))), codes(name)
    load.open("alone", live=live)
    load.append("alone", 0, audio)
    load.ask("alone", len(audio), final=True)
    while load.step():
        pass
    return load.finals["alone"].text, load.steps


def speak(load: Load, names: list[str], talk: bytes, steps: int) -> None:
    """All at once, with a partial for each piece, and so many steps between two pieces."""
    for start in range(0, len(talk), PIECE):
        for name in names:
            load.append(name, start, talk[start : start + PIECE])
            load.ask(name, min(start + PIECE, len(talk)))
            assert load.waiting() <= MAX_PARTIALS
        for _ in range(steps):
            load.step()


def test_partials_come_more_seldom_before_they_are_shed(model: Model, calls: Counter[str]) -> None:
    """The newer one takes the place and the deadline of the older one, so nobody goes without."""
    load, talk = Load(Inference(MoonshineEngine(model, 1), max_partials=MAX_PARTIALS)), codes(TALK)
    names = [f"call {number}" for number in range(MAX_PARTIALS)]
    for name in names:
        load.open(name)
    speak(load, names, talk, STEPS)
    assert load.inference.scheduler.shed_partials == load.dropped == 0
    assert load.partials.total() < sum(load.asked.values()) - load.waiting(), "newer ones have taken the place of some"
    while load.step():
        pass
    assert all(load.partials[name] for name in names) and not load.waiting()


@pytest.mark.parametrize("threads", [1, 2])
def test_overload_takes_partials_and_files_and_leaves_finals_their_time(
    model: Model, calls: Counter[str], threads: int
) -> None:
    text, steps = alone(model, TALK, live=True)
    file_text, _ = alone(model, FILE, live=False)
    of_file = calls["alone"] - steps
    calls.clear()
    load = Load(Inference(MoonshineEngine(model, threads), max_partials=MAX_PARTIALS))
    talk, file = codes(TALK), codes(FILE)
    load.open("file", live=False)
    load.append("file", 0, file)
    load.ask("file", len(file), final=True)
    for _ in range(3):
        load.step()
    assert 0 < calls["file"] < of_file, "it has begun"
    begun = calls["file"]

    names = [f"call {number}" for number in range(CALLS)]
    for name in names:
        load.open(name)
    speak(load, names, talk, STEPS // threads)
    assert calls["file"] == begun, "a call always waits"
    pieces = -(-len(talk) // PIECE)
    assert 0 < load.partials.total() < CALLS * pieces
    assert load.dropped == load.inference.scheduler.shed_partials > 0

    one_by_one, together, going_on = names[::4], names[1::4], [*names[2::4], *names[3::4]]
    for name in one_by_one:
        asked = load.steps
        load.ask(name, len(talk), final=True)
        while name not in load.finals:
            load.refresh(going_on, len(talk))
            assert name in load.step(), "each step has it in"
        assert load.answered_at[name] - asked == steps, "as if it were alone"
        assert load.finals[name].text == text
    asked = load.steps
    for name in together:
        load.ask(name, len(talk), final=True)
    while not all(name in load.finals for name in together):
        load.refresh(going_on, len(talk))
        assert set(load.step()) & set(together), "finals go before partials"
    assert {load.finals[name].text for name in together} == {text}
    assert load.steps - asked <= -(-len(together) // threads) * (steps + 1)
    assert calls["file"] == begun, "a call always waits"

    while load.step():
        pass
    assert load.finals["file"].text == file_text, "what is left is the file's"
    assert calls["file"] == of_file, "and nothing of it was done twice"
    assert not load.waiting()
    for name in names:
        if name not in load.finals:
            load.inference.receive(messages.CloseUtterance(name), 0.0)
    assert load.inference.choose() is None


def test_a_pause_lets_partials_pass_until_its_endpoint_is_near(model: Model, calls: Counter[str]) -> None:
    text, steps = alone(model, TALK, live=True)
    load, talk = Load(Inference(MoonshineEngine(model, 1))), codes(TALK)
    for name in ("pauses", "goes on", "talks"):
        load.open(name)
        load.append(name, 0, talk)
    for name in ("pauses", "goes on"):
        load.pause(name, len(talk))
    for _ in range(steps // 2):
        assert load.step()[0] in ("pauses", "goes on"), "nobody else wants anything"
    begun = calls["pauses"], calls["goes on"]
    for _ in range(3):
        load.ask("talks", len(talk))
        while load.inference.scheduler.pending("talks"):
            assert load.step() == ("talks",)
    assert (calls["pauses"], calls["goes on"]) == begun
    load.inference.receive(messages.Withdraw("goes on"), load.now_s)
    load.now_s += 0.14
    while "pauses" not in load.finals:
        load.refresh(["talks"], len(talk))
        assert load.step() == ("pauses",)
    assert load.finals["pauses"].text == text and calls["pauses"] == steps, "nothing was done twice"
    while load.step():
        pass
    assert "goes on" not in load.finals and calls["goes on"] == begun[1]


def test_a_file_uses_threads_that_no_call_needs(model: Model, calls: Counter[str]) -> None:
    """Beside one call that wants a final, in the same steps."""
    text, steps = alone(model, TALK, live=True)
    load, talk, file = Load(Inference(MoonshineEngine(model, 2))), codes(TALK), codes(FILE)
    load.open("file", live=False)
    load.append("file", 0, file)
    load.ask("file", len(file), final=True)
    load.open("call")
    load.append("call", 0, talk)
    load.ask("call", len(talk), final=True)
    while "call" not in load.finals:
        wanted = {"call", "file"} - set(load.finals)
        assert set(load.step()) == wanted
    assert load.answered_at["call"] == steps and load.finals["call"].text == text
    assert calls["file"] >= steps, "a call of the network in each step"
