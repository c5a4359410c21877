"""The self check finds kernels and graphs that are wrong without a word, and the engine goes on with what is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_asr import Qwen3ASRFeatureExtractor

from asr.engines.interface import EngineUnusable
from asr.engines.qwen import selfcheck
from asr.engines.qwen.device.execution import Execution, Graphs, Staging
from asr.engines.qwen.device.kernels import Kernels, Rows, Windows
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.mel import FrontEnd
from asr.engines.qwen.selfcheck import check_frames
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from lab.engine.qwen_answers import engine, said, shorten  # noqa: F401
from lab.engine.qwen_models import check_said, noise, reference
from lab.engine.recorded import Emulated, Recorded


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


class Crossed(Kernels):
    """Each row has the answer of the one before."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, rows: Any, plan: Any) -> Tensor:
        return super().attend(query, keys, values, rows, plan).roll(1, dims=0)


class Short(Emulated):
    """Each position misses itself, which is one of hundreds."""

    def plan(self, rows: Rows, count: int, group: int) -> Any:
        return super().plan(replace(rows, context_lens=rows.context_lens - 1), count, group)


class Refusing(Emulated):
    def attend(self, *args: Any) -> Tensor:
        raise RuntimeError("no kernel image is available for execution on the device")


class TritonError(Exception):
    """As Triton's own, which are no RuntimeError."""


class TooLarge(Emulated):
    def attend(self, *args: Any) -> Tensor:
        raise TritonError("out of resource: shared memory, Required: 114948, Hardware limit: 101376")


class Wide(Emulated):
    """A window sees the one behind it."""

    def plan_windows(self, windows: Windows, count: int) -> Any:
        return super().plan_windows(replace(windows, cu_seqlens=windows.cu_seqlens[::2]), count)


class Doubled(Emulated):
    """What stands between the matrices is wrong."""

    def silu_mul(self, both: Tensor) -> Tensor:
        return 2 * super().silu_mul(both)


CASES: dict[str, tuple[Callable[[], Kernels], Callable[[], Graphs], str, str]] = {
    "nothing": (Emulated, Recorded, "emulated with graphs", "^passed$"),
    "a position less": (Short, Recorded, "sdpa without graphs", "with graphs is wrong .* attention over pages"),
    "a window more": (Wide, Recorded, "sdpa without graphs", "with graphs is wrong .* attention over windows"),
    "another function": (Doubled, Graphs, "sdpa without graphs", "of 1 rows .* differs by"),
    "the kernel refuses": (Refusing, Graphs, "sdpa without graphs", "no kernel image is available"),
    "the kernel does not fit": (TooLarge, Recorded, "sdpa without graphs", "out of resource: shared memory"),
    "stale graphs": (Emulated, Stale, "emulated without graphs", "with graphs is wrong .*uses emulated without"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", CASES)
def test_what_is_wrong_is_found_and_not_used(
    wrong: str,
    said: list[list[int]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels, graphs, expected, sentence = CASES[wrong]
    shorten(monkeypatch, tokens=8)
    monkeypatch.setattr("asr.engines.qwen.engine.for_device", lambda *_: Execution(kernels(), graphs(), Staging()))
    made = engine(said, positions=256, captured_positions=32)
    made.warm_up()
    assert made.execution.described == expected
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
            check_said(made.last_tokens(name), reference(), codes[int(name)], made.prompts.build(), 8)
        waiting = [request for request in waiting if request.utterance_id not in done]


def test_a_device_on_which_nothing_is_right_is_refused(said: list[list[int]]) -> None:  # noqa: F811
    made = engine(said)
    wrong = Execution(Crossed(), Graphs(), Staging())
    with pytest.raises(
        EngineUnusable, match=r"self check: sdpa without graphs is wrong .* set asr.devices = \['cpu'\]"
    ):
        selfcheck.settle(made._make, wrong, torch.float32)


def test_sound_that_comes_out_wrong_is_refused() -> None:
    extractor, host = Qwen3ASRFeatureExtractor(), torch.device("cpu")
    plain = FrontEnd(extractor, host, Staging())
    check_frames(FrontEnd(extractor, host, Staging()), plain)

    class Late(FrontEnd):
        def _upsampled(self, sound: Tensor) -> Tensor:
            return super()._upsampled(sound).roll(1)

    with pytest.raises(EngineUnusable, match="frames of sound differ"):
        check_frames(Late(extractor, host, Staging()), plain)
