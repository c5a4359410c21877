"""Nobody hears another's words: what the engine starts on the streams of a GPU is read after it was written, and
before it is overwritten, whatever the GPU does when. On a CPU, with the streams of `lab.engine.streams`."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asr import messages
from asr.engines.qwen import session
from asr.engines.qwen.device.execution import Copying, Execution, Graphs
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.inference.inference import Inference
from asr.utterance import Utterance
from lab.engine.qwen_models import loaded, noise
from lab.engine.recorded import Emulated
from lab.engine.streams import Gpu, Race, gpu
from lab.engine.world import model

CPU = torch.device("cpu")


class Fixed(Graphs):
    """Shapes and places are fixed, as in graphs."""

    fixed = True

    def run(self, key: Hashable, function: Callable[[], Tensor]) -> Tensor:
        return function()

    def fresh(self) -> Fixed:
        return self


class Ring(Copying):
    """What comes up shares eight buffers with what goes down, as it did."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._ring = [torch.empty(64, dtype=torch.long, pin_memory=True) for _ in range(8)]

    def _next(self) -> Tensor:
        self._ring.append(self._ring.pop(0))
        return self._ring[-1]

    def down(self, values: Any, out: Tensor | None = None) -> Tensor:
        if values.dtype == np.int64 and values.size <= 64:
            self._next()[: values.size] = torch.from_numpy(values).reshape(-1)
        return super().down(values, out)

    def lift(self, values: Tensor) -> Callable[[], list[Any]]:
        if values.dtype != torch.long or values.numel() > 64:
            return super().lift(values)
        target, there = self._next()[: values.numel()], torch.cuda.Event()
        target.copy_(values, non_blocking=True)
        there.record(torch.cuda.current_stream(CPU))

        def wait() -> list[Any]:
            there.synchronize()
            return target.tolist()

        return wait


class Hasty(Copying):
    """The host does not wait for what comes up."""

    def lift(self, values: Tensor) -> Callable[[], list[Any]]:
        target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        target.copy_(values, non_blocking=True)
        return target.tolist


class JobElsewhere(Copying):
    """Copies down have a stream of their own, and nobody waits for it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._copies: Any = torch.cuda.Stream(device)

    def down(self, values: Any, out: Tensor | None = None) -> Tensor:
        with torch.cuda.stream(self._copies):
            return super().down(values, out)


def replay(made: Gpu, kind: type[Copying], seed: int) -> dict[str, str]:
    """Many people's utterances at once, in two cohorts, as after a crash: partials, then finals."""
    rng = random.Random(seed)
    staging = kind(CPU)
    engine = QwenEngine(
        loaded(model("streams")), Shape(slots=12, positions=96, page=32, batch=6, captured_positions=96),
        Execution(Emulated(), Fixed(), staging),
    )  # fmt: skip
    made.table(engine.pages.frames, engine.front.bins)
    inference, texts = Inference(engine), dict[str, str]()
    said = {f"u{number}": noise(0.4 + rng.random(), seed=number) for number in range(14)}
    for name, codes in said.items():
        inference.receive(messages.Open(Utterance(name, "PCMU")), 0.0)
        inference.receive(messages.Append(name, 0, codes), 0.0)
    together = 0
    with made:
        for revision in (1, 2, 3):
            for name, codes in said.items():
                end, final = len(codes) * revision // 3, revision == 3
                message = (
                    messages.FinalRequest(name, 3, end, commit=True)
                    if final
                    else messages.PartialRequest(name, revision, end)
                )
                inference.receive(message, 0.0)
            while (work := inference.choose()) is not None:
                together += bool(inference.begun and work.requests)
                for each in inference.perform(work):
                    if isinstance(each, messages.Heard):
                        texts[each.hypothesis.utterance_id] = each.hypothesis.text
    made.at_work = False
    assert together > 5 and len(texts) == 14
    return texts


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "longest", lambda seconds: 4)


@pytest.mark.parametrize("seed", [1, 2])
def test_each_read_depends_on_its_write_alone(seed: int) -> None:
    with gpu() as made:
        replay(made, Copying, seed)
    assert made.operations > 800 and not made.races, made.races[:3]
    aside = made.streams[1].number
    # What the host waits for in a launch is the sound alone, and not the forward of the other cohort.
    assert made.waits.count({aside}) > 5 and all(streams == {aside} or 0 in streams for streams in made.waits)


@pytest.mark.parametrize("kind", [Ring, Hasty, JobElsewhere])
def test_what_was_wrong_or_may_become_so_is_noticed(kind: type[Copying]) -> None:
    with gpu() as made, pytest.raises(Race):
        replay(made, kind, 1)


@given(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=40), seed=st.integers(0, 1000))
def test_what_comes_up_is_what_was_there(sizes: list[int], seed: int) -> None:
    """Any number of copies go down and up before the host reads the first."""
    rng = np.random.default_rng(seed)
    with gpu() as made, made:
        staging = Copying(CPU)
        values = [rng.integers(0, 1000, size) for size in sizes]
        lifted = [staging.lift(staging.down(each)) for each in values]
        for each in reversed(values):
            staging.down(each, torch.zeros(len(each), dtype=torch.long))
        assert [wait() for wait in lifted] == [each.tolist() for each in values]
