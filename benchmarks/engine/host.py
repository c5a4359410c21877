"""`mediaworker bench engine --host`: what the host does for each answer, with the models' arithmetic left out.

The tiny model's layers return what is at hand, a script says the words, and a step takes the time that a GPU would need
for it. Everything else is the engine's own: messages, scheduling, sound, slots, packing, drafts, texts. What is counted
is the CPU time of one thread.

Imports torch: loaded only when the engine is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.engines.interface import Answer
from asr.engines.qwen.device.execution import Execution
from asr.engines.qwen.device.memory import POSITIONS, Shape
from asr.engines.qwen.model.loader import LoadedModel
from asr.engines.qwen.model.mel import FrontEnd
from asr.engines.qwen.packed import Packed, PackedRow
from asr.engines.qwen.session import QwenSession
from asr.scheduling.request import Request
from benchmarks.engine.arrivals import Clock, per
from benchmarks.engine.driven import DrivenEngine
from benchmarks.engine.load import SEED, steady_load
from benchmarks.engine.objective import Objective
from benchmarks.engine.plan import babble
from benchmarks.engine.script import Script
from benchmarks.engine.weights import TINY, build, words

STEP_S, ROW_S = 0.001, 0.000133
"""Of a step, and of each of its rows: 18 ms for 128 rows of 0.6B, as computed for an H200."""
SOUND_S = 120.0
PARTIAL_MS = 500


@dataclass(frozen=True, slots=True)
class Options:
    streams: int = 1000
    batch: int = 128
    slots: int = 256
    seconds: float = 4.0
    utterance_s: float = 5.0
    context: int = 0
    """Words that each gives the engine beside what is said."""


class _Tower:
    """The audio tower's shapes without its arithmetic."""

    def __init__(self, chunks: Tensor, width: int) -> None:
        """`chunks`: (chunks, tokens, width), as many as in a pass at most. `width`: of the text model."""
        self._chunks, self._width = chunks, width

    def convolve(self, pages: Tensor, chosen: Sequence[int], *about: Sequence[float]) -> Tensor:
        return self._chunks[: len(chosen)]

    def attend(self, windows: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
        lengths = [sum(chunk.shape[0] for chunk in window) for window in windows]
        return torch.split(torch.zeros(sum(lengths), self._width), lengths)


class _FrontEnd(FrontEnd):
    """The mel filters, timed: what they find decides what else is to be done."""

    computing_s = 0.0

    def _compute(self, layout: Any) -> Tensor:
        start_s = time.process_time()
        frames = super()._compute(layout)
        self.computing_s += time.process_time() - start_s
        return frames


class _Packed(Packed):
    """The text model's inputs without its layers."""

    def _forward(self, inputs: Any, audio: Tensor | None, size: Any, known: Any = None) -> Tensor:
        hidden: Tensor = inputs.ids[:, None]
        return hidden

    def _argmax(self, hidden: Tensor, logits_indices: Tensor) -> Tensor:
        return logits_indices


class HostEngine(DrivenEngine):
    """The engine but for the arithmetic."""

    _front_class = _FrontEnd
    _packed_class = _Packed

    def __init__(self, loaded: LoadedModel, shape: Shape, script: Script, execution: Execution | None = None) -> None:
        super().__init__(loaded, shape, script, execution)
        tower, width = self.encoder.tower, loaded.model.config.get_text_config().hidden_size
        chunks = torch.zeros(self.encoder.pass_chunks, -(-self.encoder.chunk // 8), tower.width)
        self.encoder.tower = _Tower(chunks, width)  # type: ignore[assignment]
        self._scripting_s = 0.0
        self.device_s = 0.0
        """What a GPU would have taken until now."""

    @property
    def computing_s(self) -> float:
        """CPU time of what a GPU would do, and is done all the same."""
        assert isinstance(self.front, _FrontEnd)
        return self._scripting_s + self.front.computing_s

    def _scripted(self, sessions: Sequence[QwenSession], rows: Sequence[PackedRow]) -> list[list[int]]:
        start_s = time.process_time()
        said = super()._scripted(sessions, rows)
        self._scripting_s += time.process_time() - start_s
        return said

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        self.device_s += STEP_S + ROW_S * len(requests)
        return super().step(requests)


class _Counted(Clock):
    """Virtual time goes on by what the device would have taken; CPU time is counted between two moments of it."""

    def __init__(self, engine: HostEngine, low_s: float, high_s: float) -> None:
        super().__init__()
        self.used_s = 0.0
        self._engine, self._low_s, self._high_s = engine, low_s, high_s

    def timed(self, work: Callable[[], None]) -> float:
        now, device_s, computing_s = self.now, self._engine.device_s, self._engine.computing_s
        used_s = super().timed(work) - (self._engine.computing_s - computing_s)
        self.now = now + self._engine.device_s - device_s
        if self._low_s <= now < self._high_s:
            self.used_s += used_s
        return used_s


def measure(options: Options, folder: Path) -> dict[str, Any]:
    """`folder`: of the tiny model."""
    torch.set_num_threads(1)
    loaded = build(TINY, folder, device="cpu", dtype=torch.float32)
    script = Script(words(loaded.tokenizer), loaded.ends[0], SEED)
    engine = HostEngine(loaded, Shape(slots=options.slots, positions=POSITIONS, batch=options.batch), script)
    clock = _Counted(engine, options.utterance_s, options.utterance_s + options.seconds)
    load = steady_load(
        engine, babble(SOUND_S, SEED), repeat(b""), streams=options.streams, files=0, utterance_s=options.utterance_s,
        seconds=options.seconds, partial_ms=PARTIAL_MS, context=options.context, objective=Objective(), clock=clock,
    )  # fmt: skip
    load.run()
    tally = load.tally
    answers = sum(len(waits) for waits in tally.waits_s.values()) - sum(tally.replaced.values())
    return {
        "streams": options.streams,
        "batch": options.batch,
        "slots": options.slots,
        "seconds": options.seconds,
        "utterance_s": options.utterance_s,
        "context": options.context,
        "answers": answers,
        "steps": load.spent.steps,
        "host_us_per_answer": per(1e6 * clock.used_s, answers),
        "host_cpu_s_per_s": per(clock.used_s, options.seconds),
    }
