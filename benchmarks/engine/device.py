"""What a GPU does meanwhile: how busy it is, and what makes it wait. On a CPU there is nothing to see.

Imports torch: loaded only when the engine is measured.
"""

from __future__ import annotations

import resource
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

PROFILED, WARNED, COUNTED = 50, 20, 50
"""Steps: in the profiler, with warnings at whatever makes the host wait, and for allocations."""
SHOWN = 12
"""Kernels that are listed."""
FIELDS = (
    "gpu_busy_share", "kernels_per_step", "kernels", "syncs_per_step", "allocations_per_step",
    "device_allocations_per_step",
)  # fmt: skip


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of what they cover together: kernels may run beside each other."""
    total = reached = 0.0
    first = True
    for start, end in sorted(intervals):
        if first or start > reached:
            reached, first = start, False
        total += max(0.0, end - reached)
        reached = max(reached, end)
    return total


def ran(events: Iterable[Any], kind: str) -> list[tuple[str, float, float]]:
    """(name, start, end) in µs of what a profiler saw on `CPU` or `CUDA`; copies are not work."""
    return [
        (str(event.name), float(event.time_range.start), float(event.time_range.end))
        for event in events
        if event.device_type.name == kind and not str(event.name).startswith(("Memcpy", "Memset"))
    ]


class GpuWatch:
    """One step after the other: first profiled, then warned, then counted."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = dict.fromkeys(FIELDS)
        self._step = 0
        self._busy_s = 0.0
        self._profile: Any = None
        self._caught: Any = None
        self._log: list[warnings.WarningMessage] = []
        self._syncs = 0
        self._allocated = (0, 0)

    def before(self, busy_s: float) -> None:
        if self._step == 0:
            torch.cuda.synchronize()
            self._profile = profile(activities=[ProfilerActivity.CUDA])
            self._profile.__enter__()
            self._busy_s = busy_s
        elif PROFILED <= self._step < PROFILED + WARNED:
            self._caught = warnings.catch_warnings(record=True)
            self._log = self._caught.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        elif self._step == PROFILED + WARNED:
            self._allocated = _allocated()

    def after(self, busy_s: float) -> None:
        self._step += 1
        if self._step == PROFILED:
            self._profiled(busy_s - self._busy_s)
        elif PROFILED < self._step <= PROFILED + WARNED:
            torch.cuda.set_sync_debug_mode("default")
            self._caught.__exit__(None, None, None)
            self._syncs += sum("called a synchronizing" in str(each.message) for each in self._log)
            self.figures["syncs_per_step"] = self._syncs / (self._step - PROFILED)
        elif self._step == PROFILED + WARNED + COUNTED:
            names = ("allocations_per_step", "device_allocations_per_step")
            for name, before, now in zip(names, self._allocated, _allocated(), strict=True):
                self.figures[name] = (now - before) / COUNTED

    def close(self) -> None:
        """The run is over, maybe in the midst of it."""
        if 0 < self._step < PROFILED:
            self._profile.__exit__(None, None, None)

    def _profiled(self, wall_s: float) -> None:
        torch.cuda.synchronize()
        self._profile.__exit__(None, None, None)
        found = ran(self._profile.events(), "CUDA")
        time_us: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for name, start, end in found:
            time_us[name] += end - start  # type: ignore[assignment]
            calls[name] += 1
        if not found:
            return  # the profiler does not work here
        self.figures["gpu_busy_share"] = round(covered((start, end) for _, start, end in found) / 1e6 / wall_s, 4)
        self.figures["kernels_per_step"] = len(found) / PROFILED
        self.figures["kernels"] = [
            {"name": name, "calls_per_step": calls[name] / PROFILED, "us_per_step": round(time / PROFILED, 2)}
            for name, time in time_us.most_common(SHOWN)
        ]


def _allocated() -> tuple[int, int]:
    """Blocks handed out by torch so far, and those that it had to ask the driver for."""
    stats = torch.cuda.memory_stats()
    return int(stats.get("allocation.all.allocated", 0)), int(stats.get("num_device_alloc", 0))


def peak_mb(device: str) -> float:
    """Of the GPU's memory, or else of this process's, since the beginning."""
    if device == "cpu":
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)


def free_bytes(device: str) -> int:
    return int(torch.cuda.mem_get_info(device)[0])
