"""A forward of the text model by itself: the host's time and the device's, with graphs and without, in 8 bits, and
with the operations of torch; the kernels that take longest; and what is in memory."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch
from torch.profiler import ProfilerActivity, profile

from asr.engines.interface import EngineUnusable
from asr.engines.qwen.device.execution import for_device
from asr.engines.qwen.device.kernels import Kernels
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.fused import fuse
from asr.engines.qwen.model.loader import LoadedModel
from asr.engines.qwen.model.quantise import Kind, quantise
from asr.engines.qwen.packed import Input, PackedRow
from benchmarks.engine.device import covered, ran
from benchmarks.engine.run import MODEL
from benchmarks.engine.weights import build
from tools.gpu.options import Options, options, process_peak_mb

ROWS, REHEARSED = (1, 8, 32, 64, 128), (1, 8)
SEEN = 200
"""Positions that are in each slot before the forward: an utterance of some ten seconds."""
PARTIAL = 40
"""New positions of a row that is no decoding: a second of audio, the end of the prompt and a draft."""
WARM, COUNTED, PROFILED = 3, 20, 10
LONGEST_S = 2.0
"""Of all runs of one forward: slow ones are counted less often."""
SHOWN = 10
VARIANTS = ("kernels and graphs", "int8", "fp8", "kernels alone", "operations of torch")


def memory_mb(device: str) -> dict[str, float]:
    """Of the GPU: what tensors take now, what torch holds, and the most that tensors took. On a CPU the most that this
    process took."""
    if device == "cpu":
        return {"peak_process_mb": process_peak_mb()}
    read: dict[str, Callable[[], int]] = {
        "tensors_mb": torch.cuda.memory_allocated,
        "held_mb": torch.cuda.memory_reserved,
        "peak_tensors_mb": torch.cuda.max_memory_allocated,
    }
    return {name: round(count() / 2**20, 1) for name, count in read.items()}


def forward(made: QwenEngine, rows: int, length: int) -> Callable[[], None]:
    inputs = [PackedRow(made.kv_cache.of(f"u{row}"), SEEN, Input([7] * length), 1) for row in range(rows)]

    @torch.inference_mode()
    def run() -> None:
        made.packed.launch(inputs)()

    return run


def timed(made: QwenEngine, run: Callable[[], None], device: str) -> dict[str, float | None]:
    """Medians: ms of a forward, of the host's own work in it, and of the device from the first kernel to the last."""
    whole, host, busy = [], [], []
    staging = made.packed.staging
    until_s = time.perf_counter() + LONGEST_S
    for number in range(WARM + COUNTED):
        if whole and time.perf_counter() > until_s:
            break
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device != "cpu" else []  # type: ignore[no-untyped-call]
        waited_s, start_s = staging.waited_s, time.perf_counter()
        for mark in marks[:1]:
            mark.record()
        run()
        for mark in marks[1:]:
            mark.record()
        took_s = time.perf_counter() - start_s
        if number < WARM:
            continue
        whole.append(1000 * took_s)
        host.append(1000 * (took_s - (staging.waited_s - waited_s)))
        if marks:
            marks[1].synchronize()
            busy.append(marks[0].elapsed_time(marks[1]))
    figures: dict[str, float | None] = {"ms": round(statistics.median(whole), 3), "host_ms": None, "device_ms": None}
    if busy:
        figures |= {"host_ms": round(statistics.median(host), 3), "device_ms": round(statistics.median(busy), 3)}
    return figures


def kernels(run: Callable[[], None], device: str) -> dict[str, Any]:
    """The ten kernels that take longest in a forward; on a CPU operations, which contain each other."""
    kind = "CPU" if device == "cpu" else "CUDA"
    with profile(activities=[ProfilerActivity.CPU if device == "cpu" else ProfilerActivity.CUDA]) as seen:
        for _ in range(PROFILED):
            run()
    found = ran(seen.events() or [], kind)
    calls = Counter(name for name, _, _ in found)
    time_us: dict[str, float] = {}
    for name, start, end in found:
        time_us[name] = time_us.get(name, 0.0) + end - start
    most = sorted(time_us.items(), key=lambda each: -each[1])[:SHOWN]
    return {
        "kernels_per_forward": len(found) / PROFILED,
        "busy_us_per_forward": round(covered((start, end) for _, start, end in found) / PROFILED, 1),
        "top": [
            {"name": name, "calls": calls[name] / PROFILED, "us": round(time / PROFILED, 2)} for name, time in most
        ],
    }


def built(given: Options, name: str) -> LoadedModel:
    dtype = torch.float32 if given.rehearse else torch.bfloat16
    loaded = build(given.figures["model"], MODEL, device=given.device, dtype=dtype)
    if name in get_args(Kind):
        fuse(loaded.model)
        quantise(loaded.model, name)  # type: ignore[arg-type]
    return loaded


def variant(given: Options, name: str, rows: tuple[int, ...]) -> None:
    start_s = time.perf_counter()
    loaded = built(given, name)
    weights = {"what": f"weights, {name}", "warm_up_s": None, "built_s": round(time.perf_counter() - start_s, 2)}
    given.figures["memory"].append(weights | memory_mb(given.device))
    means = for_device(torch.device(given.device), graphs=name in VARIANTS[:3])
    if name == VARIANTS[-1]:
        means = replace(means, kernels=Kernels())
    shape = Shape(slots=max(rows), positions=512, batch=max(rows), captured_positions=max(rows) * PARTIAL)
    made = QwenEngine(loaded, shape, means)
    start_s = time.perf_counter()
    made.warm_up()
    used = made.execution  # what its self check has left
    head = {"variant": name, "attention": used.kernels.name, "graphs": used.graphs.fixed, "self_check": made.checked}
    warm = {"what": "engine, warm", **head, "warm_up_s": round(time.perf_counter() - start_s, 2)}
    given.figures["memory"].append(warm | memory_mb(given.device))
    for row in range(max(rows)):
        made.kv_cache.allocate(f"u{row}", made.kv_cache.row_pages)
    for work, length in (("decoding", 1), ("partials", PARTIAL)):
        for count in rows:
            if given.over:
                return
            run = forward(made, count, length)
            row = {"work": work, **head, "rows": count, "positions": count * length}
            given.figures["forwards"].append(row | timed(made, run, given.device))
            given.keep()
    if used.graphs.fixed:
        for work, length in (("decoding", 1), ("partials", PARTIAL)):
            count = min(64, max(rows))
            run = forward(made, count, length)
            given.figures["kernels"].append({"work": work, **head, "rows": count} | kernels(run, given.device))
            given.keep()


def main() -> int:
    given = options()
    weights = "tiny" if given.rehearse else "0.6B"
    torch.set_num_threads(1)
    given.figures = {"model": weights, "dtype": "float32" if given.rehearse else "bfloat16", "memory": []}
    given.figures |= {"forwards": [], "kernels": [], "left_out": []}
    for name in VARIANTS:
        if given.over:
            given.figures["left_out"].append(f"{name}: the time was over")
            continue
        try:
            variant(given, name, REHEARSED if given.rehearse else ROWS)
        except (EngineUnusable, RuntimeError) as error:
            given.figures["left_out"].append(f"{name}: {error}")
        given.keep()
    return 0 if given.figures["forwards"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
