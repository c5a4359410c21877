"""The self check finds kernels and graphs that are wrong without a word, and the engine goes on with what is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_asr import Qwen3ASRFeatureExtractor

from asr.engines.interface import EngineUnusable
from asr.engines.qwen import session
from asr.engines.qwen.device import selfcheck
from asr.engines.qwen.device.attention import Sdpa, Varlen
from asr.engines.qwen.device.graphs import Eager
from asr.engines.qwen.device.interface import Attention, Execution, Graphs
from asr.engines.qwen.device.selfcheck import hear
from asr.engines.qwen.device.staging import Direct
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.mel import FrontEnd
from asr.server.scheduler import Lane, Request
from asr.utterance import Utterance
from tests.engine.test_qwen_engine import engine, said  # noqa: F401
from tests.support import kernels
from tests.support.qwen_models import check_said, noise, random_model
from tests.support.recorded import Recorded


class Stale(Recorded):
    """Graphs of the text model that write to where their result was when they were recorded."""

    def run(self, key: Hashable, function: Callable[[], Tensor]) -> Tensor:
        before = self.runs[key]
        out = super().run(key, function)
        if before and isinstance(key, tuple) and key[0] == "text":
            out.copy_(self.first[key])
        else:
            self.first[key] = out.clone()
        return out

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[Hashable, Tensor] = {}


class Crossed(Sdpa):
    """Each row of decoding has the answer of the one before."""

    def over_slots(self, query: Tensor, keys: Tensor, values: Tensor, spans: Any, plan: Any) -> Tensor:
        out = super().over_slots(query, keys, values, spans, plan)
        return torch.cat([out[: spans.singles].roll(1, dims=0), out[spans.singles :]])


def splitting() -> Varlen:
    """FlashAttention-2 that chooses for itself how keys are split, as it was called before."""
    made = Varlen()
    pinned = made._attend
    made._attend = lambda *args, num_splits=None, **more: pinned(*args, **more)
    return made


CASES: dict[str, tuple[Callable[[], Attention], Callable[[], Graphs], str, str]] = {
    "nothing": (Varlen, Recorded, "varlen, True", "^passed$"),
    "keys are split": (splitting, Recorded, "sdpa, True", "varlen with graphs is wrong on this device: of .* differs"),
    "the kernel refuses": (lambda: Varlen("FA3"), Eager, "sdpa, False", "must be both set or both not set"),
    "stale graphs": (Sdpa, Stale, "sdpa, False", "sdpa with graphs is wrong .*uses sdpa without graphs instead"),
    "kernel and graphs": (splitting, Stale, "sdpa, False", "varlen without graphs is .*; sdpa with graphs is"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", CASES)
def test_what_is_wrong_is_found_and_not_used(
    wrong: str,
    said: list[list[int]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attention, graphs, expected, sentence = CASES[wrong]
    kernels.use("FA2")
    monkeypatch.setattr(session, "longest", lambda seconds: 8)
    monkeypatch.setattr("asr.engines.qwen.encoder.CONV_CHUNKS", 4)
    monkeypatch.setattr("asr.engines.qwen.encoder.PASS_TOKENS", 128)
    monkeypatch.setattr("asr.engines.qwen.engine.for_device", lambda *_: Execution(attention(), graphs(), Direct()))
    made = engine(said, captured_positions=32)
    made.warm_up()
    assert f"{made.execution.attention.name}, {made.execution.graphs.fixed}" == expected
    assert re.search(sentence, made.checked), made.checked
    check_together(made)


def check_together(made: QwenEngine) -> None:
    """Four calls at once say what the library says of each alone."""
    codes = [noise(1.5 + 0.7 * row, seed=row) for row in range(4)]
    for row, spoken in enumerate(codes):
        made.open(Utterance(str(row), "PCMU"))
        made.append(str(row), spoken)
    waiting = [Request(str(row), 1, Lane.FINAL, True, len(spoken), 0.0) for row, spoken in enumerate(codes)]
    while waiting:
        done = {answer.request.utterance_id for answer in made.step(waiting)}
        for name in done:
            check_said(made.said(name), random_model(), codes[int(name)], made.prompts.build(), 8)
        waiting = [request for request in waiting if request.utterance_id not in done]


def test_a_device_on_which_nothing_is_right_is_refused(said: list[list[int]]) -> None:  # noqa: F811
    made = engine(said)
    wrong = Execution(Crossed(), Eager(), Direct())
    with pytest.raises(
        EngineUnusable, match=r"self check: sdpa without graphs is wrong .* set asr.devices = \['cpu'\]"
    ):
        selfcheck.settle(made._make, wrong, torch.float32)


def test_sound_that_comes_out_wrong_is_refused() -> None:
    extractor, host = Qwen3ASRFeatureExtractor(), torch.device("cpu")
    plain = FrontEnd(extractor, host, Direct())
    hear(FrontEnd(extractor, host, Direct()), plain)

    class Late(FrontEnd):
        def _upsampled(self, sound: Tensor) -> Tensor:
            return super()._upsampled(sound).roll(1)

    with pytest.raises(EngineUnusable, match="frames of sound differ"):
        hear(Late(extractor, host, Direct()), plain)
