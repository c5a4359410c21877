"""The designs that are measured side by side. Imports torch: loaded only when the engine is measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from asr import text
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.model.loader import load
from benchmarks.engine.arrivals import Clock, Run, figures
from benchmarks.engine.meter import MeteredEngine
from benchmarks.engine.native import Refeed, Rollback
from benchmarks.engine.plan import arrivals, pieces, plan
from benchmarks.engine.spent import Meter, Metered
from config.settings import Asr

BATCH = 16
SLOTS = 32
SEED = 1
ENGINE = "engine"


class Designs:
    """The engine with and without batching and, as `baseline`, what others do; on a CPU, with one thread."""

    def __init__(self, folder: Path, *, baseline: bool) -> None:
        """Raises EngineUnusable."""
        torch.set_num_threads(1)
        # The engine changes the model it gets for good.
        ours, plain = load(folder), load(folder)
        self._reference = Refeed(plain)
        self._known: dict[bytes, str] = {}
        self._designs: dict[str, Metered] = {
            ENGINE: MeteredEngine(ours, Shape(slots=SLOTS, batch=BATCH)),
            f"{ENGINE}, batch 1": MeteredEngine(ours, Shape(slots=SLOTS, batch=1)),
        }
        if baseline:
            self._designs |= {design.name: design for design in (self._reference, Rollback(plain))}
        for design in self._designs.values():
            design.warm_up()

    def measure(
        self, calls: int, seconds: float, audio: Sequence[bytes], *, join: int = 1, cpu_clock: bool = False
    ) -> list[dict[str, Any]]:
        """A row for each design, all with the same arrivals. `audio`: clips in µ-law."""
        spoken = plan(audio, calls=calls, seconds=seconds, seed=SEED, join=join)
        coming = arrivals(spoken, partial_ms=Asr().partial_ms)
        rows = []
        for name, design in self._designs.items():
            design.meter = Meter()
            run = Run(design, coming, pieces(audio), seconds, Clock(cpu=cpu_clock))
            run.run()
            clock = "cpu" if cpu_clock else "real"
            row = {"design": name, "calls": calls, "seconds": seconds, "join": join, "clock": clock}
            rows.append(row | figures(run, self._whole))
        return compared(rows)

    def _whole(self, codes: bytes) -> str:
        """What `generate()` says of a whole utterance, as it would be shown."""
        if codes not in self._known:
            evidence = text.Evidence(seconds=len(codes) / 8000, peak_dbfs=0.0)
            self._known[codes] = text.clean(self._reference.whole(codes), evidence=evidence)
        return self._known[codes]


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With `ratio`: of a baseline its CPU time over the engine's, of one of ours that of re-feeding over its own."""
    cost = {row["design"]: row["cpu_s_per_audio_s"] for row in rows}
    for row in rows:
        ours = row["design"].startswith(ENGINE)
        above, below = (Refeed.name, row["design"]) if ours else (row["design"], ENGINE)
        row["ratio"] = round(cost[above] / cost[below], 2) if above in cost else None
    return rows
