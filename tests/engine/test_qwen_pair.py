"""Two models at once: partials are the small one's, finals and files the large one's, token for token."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from asr import messages
from asr.engines.interface import EngineExhausted, EngineUnusable
from asr.engines.qwen import session
from asr.engines.qwen.build import build
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.pair import PairEngine
from asr.inference.inference import Inference
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from config.settings import Asr, Qwen
from lab.engine.qwen_models import TINY, check_said, loaded, noise, random_model

SHAPE = Shape(slots=3, batch=3, exact_partials=True)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "longest", lambda seconds: 10)
    monkeypatch.setattr(session, "is_loop", lambda tokens: False)
    monkeypatch.setattr("asr.text.clean", lambda text, **_: text)


def pair(small: int = 1, large: int = 2) -> PairEngine:
    made = PairEngine(*(QwenEngine(loaded(random_model(seed)), SHAPE) for seed in (small, large)))
    for engine in (made.small, made.large):
        engine.prompts.read = lambda tokens, prompt: ("", " ".join(map(str, tokens)))  # type: ignore[method-assign]
    return made


def answer(made: PairEngine, request: Request) -> int:
    for steps in range(1, 100):
        if made.step([request]):
            return steps
    raise AssertionError("no answer")


@pytest.mark.parametrize("seed", range(2))
def test_each_model_says_what_it_says_alone(seed: int) -> None:
    made, rng = pair(), random.Random(seed)
    references = {False: random_model(1), True: random_model(2)}
    inference = Inference(made)
    names = [*(f"live-{n}" for n in range(4)), "file"]
    codes = {name: noise(rng.choice((0.7, 3.2, 8.4)), seed=n) for n, name in enumerate(names)}
    asked: dict[tuple[str, int], tuple[int, bool]] = {}
    finals: set[str] = set()

    def work(steps: int) -> None:
        for _ in range(steps):
            if (chosen := inference.choose()) is None:
                return
            for message in inference.perform(chosen):
                assert isinstance(message, messages.Heard)
                heard = message.hypothesis
                end, final = asked[heard.utterance_id, heard.revision]
                tokens = [int(token) for token in heard.text.split()]
                check_said(tokens, references[final], codes[heard.utterance_id][:end], made.large.prompts.build(), 10)
                finals.update([heard.utterance_id] if final else [])

    for name in names:
        inference.receive(messages.Open(Utterance(name, "PCMU", live=name != "file")), 0.0)
    at, revision = dict.fromkeys(names, 0), 0
    while pending := [name for name in names if at[name] < len(codes[name])]:
        name, revision = rng.choice(pending), revision + 1
        end = len(codes[name]) if name == "file" else min(len(codes[name]), at[name] + rng.randrange(2000, 12000))
        inference.receive(messages.Append(name, at[name], codes[name][at[name] : end]), 0.0)
        at[name], final = end, end == len(codes[name])
        asked[name, revision] = end, final
        kind = (
            messages.FinalRequest(name, revision, end, True) if final else messages.PartialRequest(name, revision, end)
        )
        inference.receive(kind, 0.0)
        work(rng.randrange(8))
    work(10_000)
    assert finals == set(names)
    assert not len(made.small.kv_cache) and not len(made.large.kv_cache)


def test_a_partial_is_a_draft_for_the_other_model() -> None:
    """With the same weights in both, every token of it holds."""
    made, codes = pair(2, 2), noise(3.0, seed=2)
    made.open(Utterance("u", "PCMU"))
    made.append("u", codes)
    assert answer(made, Request("u", 1, Lane.FIRST_PARTIAL, False, len(codes), 0.0)) == 10
    assert answer(made, Request("u", 2, Lane.FINAL, True, len(codes), 0.0)) == 1


def test_tokens_that_mean_something_else_are_no_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [QwenEngine(loaded(random_model(2)), SHAPE) for _ in range(2)]
    engines[0].prompts.vocabulary = dict(list(engines[0].prompts.vocabulary.items())[:-1])
    made, codes = PairEngine(*engines), noise(3.0, seed=2)
    assert not made.same_tokens
    made.open(Utterance("u", "PCMU"))
    made.append("u", codes)
    assert answer(made, Request("u", 1, Lane.FIRST_PARTIAL, False, len(codes), 0.0)) == 10
    assert answer(made, Request("u", 2, Lane.FINAL, True, len(codes), 0.0)) == 10


def test_a_final_is_told_though_the_small_model_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    made, codes = pair(), noise(1.0, seed=2)
    for name in ("one", "other"):
        made.open(Utterance(name, "PCMU"))
        made.append(name, codes)

    def exhausted(requests: Any) -> Any:
        raise EngineExhausted("no memory")

    final = Request("one", 1, Lane.FINAL, True, len(codes), 0.0)
    partial = Request("other", 1, Lane.FIRST_PARTIAL, False, len(codes), 0.0)
    for _ in range(9):
        assert made.step([final]) == []
    monkeypatch.setattr(made.small, "launch", exhausted)
    (told,) = made.step([final, partial])
    assert told.request is final
    with pytest.raises(EngineExhausted):
        made.step([partial])


def test_it_is_what_the_configuration_asks_for(tmp_path: Path) -> None:
    made = build(Asr(model=str(TINY), partials_model=str(TINY)), Qwen(slots=2, batch=2))
    assert isinstance(made, PairEngine) and made.same_tokens
    made.warm_up()
    with pytest.raises(EngineUnusable, match="is no folder with a model"):
        build(Asr(model=str(TINY), partials_model=str(tmp_path)), Qwen())
