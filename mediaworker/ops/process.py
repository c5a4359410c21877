"""The metrics of the process itself: its start, version and readiness."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
from collections.abc import Callable
from importlib.metadata import version

from config.metrics.registry import MetricsRegistry
from config.process.child_process import resident_bytes
from config.process.tasks import faults


def add_metrics(
    metrics: MetricsRegistry, *, started_s: float, ready: Callable[[], bool], engine: Callable[[], str]
) -> None:
    metrics.gauge("process_start_time_seconds", "Shows when the media process started.", lambda: started_s)
    metrics.gauge(
        "build_info",
        "Is 1, and its labels say which version is running.",
        lambda: {(version("mediaworker"), engine(), platform.python_version()): 1},
        "version", "engine", "python",
    )  # fmt: skip
    metrics.gauge(
        "max_fds",
        "Shows how many file descriptors the media process may open.",
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    metrics.gauge("tasks", "Shows how many asyncio tasks exist.", lambda: len(asyncio.all_tasks()))
    metrics.gauge(
        "open_fds",
        "Shows how many file descriptors the media process has open.",
        lambda: len(os.listdir("/proc/self/fd")),
    )
    metrics.gauge("resident_memory_bytes", "Shows the resident memory of the media process.", resident_bytes)
    metrics.counter(
        "cpu_seconds",
        "Counts the CPU seconds of the media process.",
        lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
    )
    metrics.gauge("ready", "Is 1 while /readyz answers with 200.", ready)
    what = "Counts failures of tasks that last as long as the process, by task; each was begun again."
    metrics.counter("task_faults", what, lambda: faults, "task")
