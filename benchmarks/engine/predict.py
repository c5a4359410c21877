"""`mediaworker bench engine --predict h100|h200|l40s --model 0.6B|1.7B`: how many people a GPU would follow, in virtual
time.

The engine's own scheduler, sound, drafts, pages and packing run with the models' arithmetic left out, as in `host`; the
time of each step is that of `costs`. As on a GPU, a step is launched before the one before it is collected: the host's
work and the device's overlap, and the longer of the two is the limit.

Imports torch: loaded only when the engine is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.engines.interface import Answer, Collect
from asr.engines.qwen.device.execution import Execution, Staging, bucket, buckets, for_device
from asr.engines.qwen.device.memory import CAPTURED, MOST_REQUESTS, PARTIAL, POSITIONS, SHARE, Shape
from asr.engines.qwen.packed import PackedRow
from asr.engines.qwen.session import QwenSession
from asr.scheduling.request import Request
from benchmarks.engine.arrivals import Clock
from benchmarks.engine.costs import COSTS, Costs
from benchmarks.engine.host import HostEngine
from benchmarks.engine.limit import CHIPS, PUBLISHED, Dimensions, streams_with_finals
from benchmarks.engine.load import SEED, Load, steady_load
from benchmarks.engine.objective import Objective
from benchmarks.engine.plan import babble
from benchmarks.engine.presets import MEMORY_GIB, weights_bytes
from benchmarks.engine.script import Script
from benchmarks.engine.search import Found, search
from benchmarks.engine.weights import TINY, build, words

SOUND_S, PIECE_S = 120.0, 20.0


@dataclass(frozen=True, slots=True)
class Options:
    chip: str
    model: str
    files: int = 16
    seconds: float = 4.0
    utterance_s: float = 5.0
    context: int = 0
    """Words that each gives the engine beside what is said."""
    partial_ms: int = 500
    objective: Objective = field(default_factory=Objective)
    start: int = 64
    bound: int = 4096


class _Ahead(Staging):
    """The host goes on while the device computes."""

    def __init__(self) -> None:
        super().__init__()
        self.asynchronous = True


class Predicted(HostEngine):
    """The engine but for the arithmetic, whose time goes by on a clock of its own."""

    def __init__(self, loaded: Any, shape: Shape, script: Script, costs: Costs, model: Dimensions) -> None:
        plain = for_device(torch.device("cpu"))
        super().__init__(loaded, shape, script, Execution(plain.kernels, plain.graphs, _Ahead()))
        self.costs, self.model = costs, model
        self.now = 0.0
        self.host_s = self.busy_s = self.waited_s = 0.0
        """Of the host's work, of the device's, and of the host's waiting for it."""
        self._free_s = 0.0
        """From then on the device has nothing to do."""
        self._sizes = buckets(shape.captured_positions)
        self._encoded = [0, 0]
        """Chunks and tokens that the step being launched has brought through the encoder."""
        self._rows_launched: Sequence[PackedRow] = ()
        """Its rows."""
        convolve, attend = self.encoder.tower.convolve, self.encoder.tower.attend

        def convolved(pages: Tensor, chosen: Sequence[int], maxima: Sequence[float], lengths: Sequence[int]) -> Tensor:
            self._encoded[0] += len(chosen)
            return convolve(pages, chosen, maxima, lengths)

        def attended(windows: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
            self._encoded[1] += sum(chunk.shape[0] for window in windows for chunk in window)
            return attend(windows)

        self.encoder.tower.convolve = convolved  # type: ignore[method-assign]
        self.encoder.tower.attend = attended  # type: ignore[method-assign,assignment]

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        return self.launch(requests)()

    def launch(self, requests: Sequence[Request]) -> Collect:
        self._encoded[:], self._rows_launched = (0, 0), ()
        collect = super().launch(requests)
        rows = self._rows_launched
        self._spend(self.costs.host(len(rows)))
        device_s = self.costs.sound_s + self.costs.encoder(self.model, *self._encoded)
        if rows:
            known, count = [(row.start, len(row)) for row in rows], sum(map(len, rows))
            filled = bucket(count, self._sizes) or count
            device_s += self.costs.text(self.model, known, sum(row.logits_count for row in rows), filled)
        self.busy_s += device_s
        self._free_s = over_s = max(self._free_s, self.now) + device_s

        def collected() -> list[Answer]:
            answers = collect()
            self.waited_s += max(0.0, over_s - self.now)
            self.now = max(self.now, over_s)
            return answers

        return collected

    def _forward(
        self, sessions: Sequence[QwenSession], rows: Sequence[PackedRow]
    ) -> Callable[[], Sequence[Sequence[int]]]:
        self._rows_launched = rows
        return super()._forward(sessions, rows)

    def _spend(self, seconds: float) -> None:
        self.host_s += seconds
        self.now += seconds


class _Virtual(Clock):
    """The engine's own."""

    def __init__(self, engine: Predicted) -> None:
        super().__init__()
        self._engine = engine

    def timed(self, work: Callable[[], None]) -> float:
        engine = self._engine
        before_s = engine.now = max(engine.now, self.now)
        work()
        if engine.now == before_s:  # something was taken in
            engine.now += engine.costs.host_message_s
        self.now = engine.now
        self.busy_s += self.now - before_s
        return self.now - before_s


def predict(options: Options, folder: Path, said: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """`folder`: of the tiny model, whose tokenizer is used."""
    torch.set_num_threads(1)
    costs, model = COSTS[options.chip], PUBLISHED[options.model]
    chip = options.chip.upper()
    free = (MEMORY_GIB[chip] * 2**30 - weights_bytes(model)) * SHARE
    slots = int(free / (POSITIONS * model.kv_bytes))
    loaded = build(TINY, folder, device="cpu", dtype=torch.float32)
    script = Script(words(loaded.tokenizer), loaded.ends[0], SEED)
    sound, pieces_of = babble(SOUND_S, SEED), babble(PIECE_S, SEED + 1)
    shape = Shape(
        slots=min(slots, options.bound + options.files), positions=POSITIONS, batch=MOST_REQUESTS,
        captured_positions=max(CAPTURED, PARTIAL * MOST_REQUESTS),
    )  # fmt: skip
    rows: list[dict[str, Any]] = []

    def run(streams: int) -> Load:
        engine = Predicted(loaded, shape, script, costs, model)
        load = steady_load(
            engine, sound, repeat(pieces_of), streams=streams, files=options.files, utterance_s=options.utterance_s,
            seconds=options.seconds, partial_ms=options.partial_ms, context=options.context,
            objective=options.objective, searching=True, clock=_Virtual(engine),
        )  # fmt: skip
        load.run()
        shares = {"host_share": engine.host_s / engine.now, "device_share": engine.busy_s / engine.now}
        rows.append({"streams": streams} | load.figures() | {name: round(each, 3) for name, each in shares.items()})
        said(f"{streams} streams: {100 * load.used():.0f} % of the objective")
        return load

    @cache
    def used(streams: int) -> float:
        """The same each time: there is nothing to vote on."""
        return run(streams).used()

    found: Found = search(used, bound=options.bound, start=options.start)
    limit = streams_with_finals(model, CHIPS[chip], utterance_s=options.utterance_s)
    return {
        "predicted": True,
        "chip": options.chip,
        "model": options.model,
        "files": options.files,
        "streams": found.streams,
        "limit": limit,
        "utterance_s": options.utterance_s,
        "context": options.context,
        "partial_ms": options.partial_ms,
        "objective": asdict(options.objective),
        "costs": asdict(costs),
        "runs": rows,
    }
