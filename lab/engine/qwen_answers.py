"""An engine with a random model, and what it must answer: the tokens of `generate()` in the library."""

from __future__ import annotations

import random
from typing import Any

import pytest

from asr import messages
from asr.engines.qwen import encoder, session
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.inference.inference import Inference
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from lab.engine.qwen_models import check_said, loaded, noise, random_model, reference


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Tokens of every answer; a random model babbles, and is not stopped for it."""
    heard: list[list[int]] = []
    monkeypatch.setattr(session, "is_loop", lambda tokens: False)
    return heard


def shorten(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Answers of so many tokens at most, and passes of the encoder that are so small that few sizes are recorded."""
    monkeypatch.setattr(session, "longest", lambda seconds: tokens)
    monkeypatch.setattr(encoder, "CONV_CHUNKS", 4)
    monkeypatch.setattr(encoder, "PASS_TOKENS", 128)


def engine(said: list[list[int]] | None = None, **shape: Any) -> QwenEngine:
    made = QwenEngine(loaded(random_model()), Shape(**{"exact_partials": True, "slots": 4, "batch": 4} | shape))
    read = made.prompts.read

    def noted(tokens: list[int], prompt: Any) -> tuple[str, str]:
        if said is not None:
            said.append(list(tokens))
        return read(tokens, prompt)

    made.prompts.read = noted  # type: ignore[method-assign]
    return made


def check_any_mix(seed: int, said: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight utterances on three slots: prefill, verification and decoding mixed, evictions, files in small pieces."""
    monkeypatch.setattr(session, "longest", lambda seconds: 10)
    made, rng = engine(slots=3, positions=256, page=256, batch_tokens=24), random.Random(seed)
    made.prompts.read = lambda tokens, prompt: ("", " ".join(map(str, tokens)))  # type: ignore[method-assign]
    monkeypatch.setattr("asr.text.clean", lambda text, **_: text)
    inference = Inference(made)
    utterances = [Utterance(f"live-{n}", "PCMU", language="en" if n % 2 else "") for n in range(5)]
    utterances += [Utterance(f"file-{n}", "PCMU", live=False, stream=f"job-{n % 2}") for n in range(3)]
    lengths = (0.4, 2.1, 5.3, 8.02, 9.4)
    codes = {each.id: noise(rng.choice(lengths), seed=index) for index, each in enumerate(utterances)}
    at, asked = dict.fromkeys(codes, 0), dict[tuple[str, int], int]()
    finals: set[str] = set()
    heard = 0

    def work(steps: int) -> None:
        nonlocal heard
        for _ in range(steps):
            if (chosen := inference.choose()) is None:
                return
            files = [each for each in chosen.requests if each.lane is Lane.BATCH]
            before = made.packed.positions
            for message in inference.perform(chosen):
                assert isinstance(message, messages.Heard)
                hypothesis = message.hypothesis
                name, revision = hypothesis.utterance_id, hypothesis.revision
                prompt = made.prompts.build(language="en" if name in ("live-1", "live-3") else "")
                tokens = [int(token) for token in hypothesis.text.split()]
                check_said(tokens, reference(), codes[name][: asked[name, revision]], prompt, 10)
                finals.update([name] if hypothesis.final else [])
                heard += 1
            if len(files) == len(chosen.requests):
                assert made.packed.positions - before <= 24 + 11 * len(files)

    for each in utterances:
        inference.receive(messages.Open(each), 0.0)
    revision = 0
    while pending := [each for each in utterances if at[each.id] < len(codes[each.id])]:
        each, revision = rng.choice(pending), revision + 1
        end = min(len(codes[each.id]), at[each.id] + rng.randrange(200, 12000))
        inference.receive(messages.Append(each.id, at[each.id], codes[each.id][at[each.id] : end]), 0.0)
        at[each.id] = asked[each.id, revision] = end
        if end == len(codes[each.id]):
            inference.receive(messages.FinalRequest(each.id, revision, end, commit=True), 0.0)
        elif each.live:
            inference.receive(messages.PartialRequest(each.id, revision, end), 0.0)
        work(rng.randrange(8))
    work(10_000)
    assert finals == set(codes) and heard > len(codes)
    assert not len(made.kv_cache) and made.kv_cache.free == made.kv_cache.pages


def answer(made: QwenEngine, request: Request) -> int:
    """Until it is answered; the steps it took."""
    for steps in range(1, 5000):
        if made.step([request]):
            return steps
    raise AssertionError("no answer")


def check_partials_and_finals(seconds: float, said: list[list[int]], monkeypatch: Any, step: int) -> None:
    """`step`: codes between two partials."""
    monkeypatch.setattr(session, "longest", lambda seconds: 16)
    made = engine(said, positions=256 if seconds < 9 else 512)
    codes = noise(seconds, seed=int(seconds * 1000))
    utterance = Utterance("u", "PCMU", language="en" if seconds > 1 else "", context="Ana Maria, <|im_end|> 7")
    made.open(utterance)
    prompt = made.prompts.build(context=utterance.context, language=utterance.language)
    at = 0
    for revision, end in enumerate([*range(step, len(codes), step), len(codes)]):
        made.append("u", codes[at:end])
        at = end
        final = end == len(codes)
        answer(made, Request("u", revision, Lane.FINAL if final else Lane.PARTIAL, final, end, 0.0))
        check_said(said[-1], reference(), codes[:end], prompt, 16)
    made.close("u")
    assert not len(made.kv_cache)
