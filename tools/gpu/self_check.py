"""The engine's own check at its start, by model, precision and kind of attention: whether it passed, what the engine
fell back to, and how long the start took."""

from __future__ import annotations

import time

import torch

from asr.engines.interface import EngineUnusable
from asr.engines.qwen.device.execution import Execution, for_device
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from benchmarks.engine.run import MODEL
from benchmarks.engine.weights import build
from tools.gpu.options import Options, options

STARTS = (("0.6B", "bfloat16"), ("1.7B", "bfloat16"), ("0.6B", "float16"), ("0.6B", "float32"))
REHEARSED = (("tiny", "float32"),)
BATCH, REHEARSED_BATCH = 32, 4


def rehearsed() -> Execution:
    """What a CPU has is too plain to be checked: graphs as the tests record them on a CPU are not."""
    from lab.engine.recorded import EXECUTIONS

    return EXECUTIONS["recorded"]()


def start(given: Options, weights: str, kind: str) -> None:
    dtype: torch.dtype = getattr(torch, kind)
    wanted = rehearsed() if given.rehearse else for_device(torch.device(given.device))
    row = {"weights": weights, "dtype": kind, "wanted": wanted.described}
    loaded = build(weights, MODEL, device=given.device, dtype=dtype)
    batch = REHEARSED_BATCH if given.rehearse else BATCH
    captured = {"captured_positions": 32} if given.rehearse else {}
    made = QwenEngine(loaded, Shape(slots=batch, positions=512, batch=batch, **captured), wanted)
    start_s = time.perf_counter()
    made.warm_up()
    row |= {
        "used": made.execution.described,
        "found": made.checked,
        "warm_up_s": round(time.perf_counter() - start_s, 2),
    }
    given.figures["starts"].append(row)


def main() -> int:
    given = options()
    torch.set_num_threads(1)
    given.figures = {"starts": [], "left_out": []}
    for weights, kind in REHEARSED if given.rehearse else STARTS:
        which = f"{weights} in {kind}"
        if given.over:
            given.figures["left_out"].append(f"{which}: the time was over")
            continue
        try:
            start(given, weights, kind)
        except EngineUnusable as error:
            given.figures["left_out"].append(f"{which}: {error}")
        given.keep()
    starts = given.figures["starts"]
    if wrong := [row for row in starts if row["found"] != "passed"]:
        raise SystemExit(f"{len(wrong)} of {len(starts)} starts did not pass their check")
    return 0 if starts else 1


if __name__ == "__main__":
    raise SystemExit(main())
