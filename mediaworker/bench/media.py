"""`mediaworker bench media`: legs of real RTP on loopback through this worker's media path and the usual design's.

Three processes: the sender (not counted), the receiver under test, and, in the same run, the baseline. The figure to
look at is CPU time per leg and second; legs per core is its inverse.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

BASELINE_LEGS = 100
"""Beyond this the usual design nears the end of a core, and a saturated run would understate its cost per leg."""


def measure(legs: int, seconds: float, *, baseline: bool = True) -> dict[str, Any]:
    """One row: `legs` through the worker for `seconds`, then at most BASELINE_LEGS through the baseline."""
    figures = _run("mediaworker.bench.receiver", legs, seconds)
    receiver, sender = figures["receiver"], figures["sender"]
    row: dict[str, Any] = {
        "legs": legs,
        "seconds": seconds,
        "packets_sent": sender["sent"],
        "packets_received": receiver["packets"],
        "cpu_share": round(receiver["cpu_s"] / seconds, 4),
        "cpu_s_per_leg_s": receiver["cpu_s"] / (legs * seconds),
        "loop_stall_p99_ms": receiver["loop_stall_p99_ms"],
        "vad_lag_max_ms": receiver["vad_lag_max_ms"],
        "utterances": receiver["utterances"],
        "events": receiver["events"],
        "rss_mb": receiver["rss_mb"],
        "sender_late_slots": sender["late_slots"],
        "baseline_legs": None,
        "baseline_cpu_s_per_leg_s": None,
        "ratio": None,
    }
    if baseline:
        count = min(legs, BASELINE_LEGS)
        usual = _run("mediaworker.bench.baseline", count, seconds)["receiver"]
        row["baseline_legs"] = count
        row["baseline_cpu_s_per_leg_s"] = usual["cpu_s"] / (count * seconds)
        row["ratio"] = round(row["baseline_cpu_s_per_leg_s"] / row["cpu_s_per_leg_s"], 1)
    return row


def has_baseline() -> bool:
    try:
        import aiortc  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        return False
    return True


def _run(module: str, legs: int, seconds: float) -> dict[str, Any]:
    ports = _free_range(legs)
    command = [sys.executable, "-m", module, ports, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        if receiver.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{module} did not start")
        sender = subprocess.run(
            [sys.executable, "-m", "mediaworker.bench.sender", ports, str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        answer = receiver.stdout.read()
    return {"receiver": json.loads(answer), "sender": json.loads(sender.stdout)}


def _free_range(legs: int) -> str:
    """Even UDP ports in a row that are free now, `first-last`."""
    first = 20000
    while first + 2 * legs < 32000:
        taken = next((port for port in range(first, first + 2 * legs, 2) if not _is_free(port)), None)
        if taken is None:
            return f"{first}-{first + 2 * legs - 2}"
        first = taken + 2
    raise RuntimeError(f"no {legs} free UDP ports between 20000 and 32000")


def _is_free(port: int) -> bool:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
