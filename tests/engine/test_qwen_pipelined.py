"""Two steps of the engine begun at a time, as on a GPU: the words are the same, and the host waits for nothing early.

The device is the host here, so what a step computes is computed when it is launched; that is the order in which a
stream would do it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from asr import messages
from asr.engines.interface import Collect
from asr.engines.qwen import session
from asr.engines.qwen.device.execution import Staging, for_device
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.pair import PairEngine
from asr.inference.inference import Inference
from asr.scheduling.request import LIVE, Request
from asr.utterance import Utterance
from lab.engine.qwen_models import loaded
from lab.engine.world import POSITIONS, longest, model, speech


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "longest", longest)


class Asynchronous(Staging):
    """Knows who waits when."""

    def __init__(self) -> None:
        super().__init__()
        self.asynchronous = True
        self.launching = self.aside = False
        self.begun = 0
        """Steps that have not been collected."""

    @contextmanager
    def beside(self) -> Iterator[None]:
        self.aside = True
        yield
        self.aside = False

    def lift(self, values: Tensor) -> Callable[[], list[Any]]:
        lifted = super().lift(values)
        aside = self.aside

        def wait() -> list[Any]:
            assert aside or not self.launching, "a launch waits for nothing but what is beside it"
            return lifted()

        return wait


class Watched(QwenEngine):
    """Two steps at a time at most, of different utterances; the first is collected first."""

    steps: list[set[str]]

    def launch(self, requests: Sequence[Request]) -> Collect:
        staging = self.execution.staging
        assert isinstance(staging, Asynchronous)
        names = {request.utterance_id for request in requests}
        self.steps = getattr(self, "steps", [])
        assert len(self.steps) < 2 and not any(names & others for others in self.steps)
        staging.launching = True
        try:
            collect = super().launch(requests)
        finally:
            staging.launching = False
        self.steps.append(names)

        def collected() -> Any:
            assert self.steps.pop(0) is names
            return collect()

        return collected


KINDS = ("open", "append", "partial", "guess", "final", "close", "step")
WEIGHTS = (8, 22, 14, 5, 8, 2, 41)


def pipelined(shape: Shape, kind: type[QwenEngine] = Watched) -> QwenEngine:
    made = loaded(model("engine"))
    weight = made.model.get_input_embeddings().weight
    return kind(made, shape, replace(for_device(weight.device), staging=Asynchronous()))


def alone(codes: bytes, language: str) -> str:
    """The final of an utterance that nothing else is asked about."""
    engine = QwenEngine(loaded(model("alone")), Shape(slots=1, positions=POSITIONS, page=POSITIONS, batch=1))
    inference = Inference(engine)
    inference.receive(messages.Open(Utterance("alone", "PCMU", language=language)), 0.0)
    inference.receive(messages.Append("alone", 0, codes), 0.0)
    inference.receive(messages.FinalRequest("alone", 1, len(codes), commit=True), 0.0)
    while (work := inference.choose()) is not None:
        for message in inference.perform(work):
            if isinstance(message, messages.Heard):
                return message.hypothesis.text
    raise AssertionError("no answer")


@pytest.mark.parametrize(("slots", "batch"), [(2, 4), (3, 1), (5, 2), (8, 4), (12, 4)])
def test_the_words_of_both_cohorts_are_those_of_each_utterance_alone(slots: int, batch: int) -> None:
    """Random calls and files: partials, speculative finals, closings in the midst of a step, too few slots."""
    rng = random.Random(slots)
    engine = pipelined(Shape(slots=slots, positions=POSITIONS, page=POSITIONS, batch=batch, batch_tokens=24))
    inference = Inference(engine)
    known: dict[str, tuple[bytes, str]] = {}
    received: dict[str, int] = {}
    finals: dict[str, tuple[str, bytes, str]] = {}
    begun = together = 0
    revision = 0

    def step() -> bool:
        nonlocal together
        if (work := inference.choose(0.01 * revision)) is None:
            return False
        together += bool(inference.begun and work.requests)
        for message in inference.perform(work, 0.01 * revision):
            if isinstance(message, messages.Heard) and message.hypothesis.final:
                name = message.hypothesis.utterance_id
                if name not in waiting:
                    continue  # a speculative one
                waiting.remove(name)
                codes, language = known.pop(name)
                assert message.hypothesis.error is None and name not in finals
                finals[name] = message.hypothesis.text, codes[: received[name]], language
        return True

    waiting: set[str] = set()
    for revision in range(1, 800):
        talking = [name for name in known if name not in waiting]
        match rng.choices(("open", "append", "partial", "guess", "final", "close", "step"), (8, 22, 14, 5, 8, 2, 41))[
            0
        ]:
            case "open" if len(known) < 12:
                name, live = f"u{begun}", rng.random() < 0.7
                language = "en" if begun % 3 == 0 else ""
                known[name], received[name] = (speech(begun % 40), language), 0
                begun += 1
                opened = Utterance(name, "PCMU", live=live, language=language, stream="" if live else name)
                inference.receive(messages.Open(opened), 0.0)
            case "append" if talking:
                name = rng.choice(talking)
                start = received[name]
                data = known[name][0][start : start + rng.choice((80, 800, 4000))]
                if data:
                    inference.receive(messages.Append(name, start, data), 0.0)
                received[name] += len(data)
            case "partial" if talking and received[name := rng.choice(talking)]:
                inference.receive(messages.PartialRequest(name, revision, received[name]), 0.01 * revision)
            case "guess" if talking and received[name := rng.choice(talking)]:
                guess = messages.FinalRequest(name, revision, received[name], commit=False, wanted_in_ms=340)
                inference.receive(guess, 0.01 * revision)
            case "final" if talking and received[name := rng.choice(talking)]:
                waiting.add(name)
                inference.receive(messages.FinalRequest(name, revision, received[name], commit=True), 0.01 * revision)
            case "close" if known:
                name = rng.choice(sorted(known))
                waiting.discard(name)
                del known[name]
                inference.receive(messages.CloseUtterance(name), 0.0)
            case "step":
                step()
    while step():
        pass
    assert not waiting or slots == 1
    assert len(finals) > 20 and (together > 20 or slots <= batch)
    for text, codes, language in list(finals.values())[:12]:
        assert text == alone(codes, language)
    for name in list(known):
        inference.receive(messages.CloseUtterance(name), 0.0)
    assert inference.choose() is None and not inference.begun and engine.kv_cache.free == slots
    assert not engine.allocator.in_flight and not engine._sessions and not len(inference.scheduler)


def test_a_closed_utterance_is_collected_without_an_answer_for_another() -> None:
    """Its slot may have gone to somebody else by then."""
    engine = pipelined(Shape(slots=2, positions=POSITIONS, page=POSITIONS, batch=1))
    for name in ("first", "second"):
        engine.open(Utterance(name, "PCMU"))
        engine.append(name, speech(1 if name == "first" else 2)[:4000])
    requests = {name: Request(name, 1, LIVE[0], True, 4000, 0.0) for name in ("first", "second")}
    collect = engine.launch([requests["first"]])
    engine.close("first")
    other = engine.launch([requests["second"]])
    collect()
    answers = other()
    while not answers:
        answers = engine.step([requests["second"]])
    assert answers[0].text == alone(speech(2)[:4000], "")


def test_two_models_are_both_launched_before_either_is_collected() -> None:
    """And the last partial of the small one is still the large one's draft."""
    large, small = (pipelined(Shape(slots=4, positions=POSITIONS, page=POSITIONS, batch=4)) for _ in range(2))
    pair = PairEngine(small, large)
    assert pair.capabilities.pipelined and pair.same_tokens
    for name in ("partial", "final"):
        pair.open(Utterance(name, "PCMU"))
        pair.append(name, speech(3)[:4000])
    requests = [
        Request("partial", 1, LIVE[1], False, 4000, 0.0), Request("final", 1, LIVE[0], True, 4000, 0.0),
    ]  # fmt: skip
    answers = []
    while requests:
        collect = pair.launch(requests)
        assert all(len(each.steps) == 1 for each in (large, small) if any(pair._of(r) is each for r in requests))
        found = collect()
        answers += found
        requests = [each for each in requests if each not in [answer.request for answer in found]]
    assert {answer.text for answer in answers} == {alone(speech(3)[:4000], "")}
    assert large.last_tokens("partial") == small.last_tokens("partial") != []
