"""`mediaworker bench events`: what many subscribers cost, how long they wait, and who feels one that never reads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import ROOT

_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    calls: int
    subscribers: int
    everything: int
    """Of them, who follow every call."""
    stalled: int
    """Beside them, who follow every call and never read."""
    seconds: float
    baseline: bool = True


def measure(options: Options, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each design, without and with those who never read."""
    rows = []
    for design in ("ours", "usual") if options.baseline else ("ours",):
        for stalled in dict.fromkeys((0, options.stalled)):
            say(f"{design}: {options.subscribers} subscribers, {stalled} more that never read, {options.seconds:g} s …")
            rows.append(_run(design, options, stalled))
    return rows


def _run(design: str, options: Options, stalled: int) -> dict[str, Any]:
    environment = os.environ | _ENVIRONMENT
    port = _free_port()
    server_line = [design, port, options.calls, options.seconds]
    counts = [port, options.calls, options.subscribers, options.everything, stalled, options.seconds + SETTLE_S]
    with _child("server", server_line, environment) as server:
        _line(server, "ready")
        with _child("subscribers", counts, environment) as subscribers:
            _line(subscribers, "ready")
            _say(server)
            over = json.loads(_line(server))
            heard = json.loads(_line(subscribers))
        _say(server)
    cpu_s = over["cpu_s"]
    return {
        "design": design,
        "calls": options.calls,
        "subscribers": options.subscribers,
        "stalled": stalled,
        "seconds": options.seconds,
        **heard,
        **over,
        "cpu_share": round(cpu_s / options.seconds, 4),
        "cpu_us_per_delivery": round(1e6 * cpu_s / heard["deliveries"], 1) if heard["deliveries"] else None,
    }


def _child(module: str, arguments: list[Any], environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"benchmarks.events.{module}", *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT, bufsize=1
    )


def _line(process: subprocess.Popen[str], expected: str | None = None) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line or (expected is not None and line != expected):
        raise RuntimeError(f"a process of the benchmark went wrong: {line!r}")
    return line


def _say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def table(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    costs = ("CPU", "µs/delivery", "RSS", "stall p99", "lost")
    lines: list[tuple[str, ...]] = [("design", "never read", "deliveries", "p50", "p99", "max", *costs)]
    for row in rows:
        each = row["cpu_us_per_delivery"]
        lines.append(
            (
                row["design"],
                str(row["stalled"]),
                str(row["deliveries"]),
                f"{row['p50_ms']:.1f} ms",
                f"{row['p99_ms']:.1f} ms",
                f"{row['max_ms']:.0f} ms",
                f"{100 * row['cpu_share']:.1f} %",
                "-" if each is None else f"{each:.1f}",
                f"{row['rss_mb']:.0f} MB",
                f"{row['loop_stall_p99_ms']:.1f} ms",
                str(row["lost_subscribers"]),
            )
        )
    return lines
