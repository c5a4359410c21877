"""`mediaworker bench media|twilio|sip`: legs on loopback through this worker's media path and the usual design's.

Three processes: the sender (not counted), the receiver under test, and, in the same run, the baseline. The figure to
look at is CPU time per leg and second; legs per core is its inverse.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from benchmarks import ROOT
from benchmarks.media.rtp_sender import PTIME_S

BASELINE_LEGS = 100
"""Beyond this the usual design nears the end of a core, and a saturated run would understate its cost per leg."""
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def measure_rtp(
    legs: int, seconds: float, *, baseline: bool = True, noise: bool = False, silence: bool = False
) -> dict[str, Any]:
    """One row: `legs` of RTP through the worker for `seconds`, then at most BASELINE_LEGS through the baseline.

    `noise`: in the pauses, which are digital silence otherwise; `silence`: the worker also sends it back, which the
    baseline does not.
    """
    figures = _run("rtp_receiver", "rtp_sender", [_free_range(legs), str(seconds)], noise=noise, silence=silence)
    return _row(legs, seconds, figures, *_usual_rtp(legs, seconds, baseline=baseline, noise=noise))


def measure_twilio(streams: int, seconds: float, *, baseline: bool = True, noise: bool = False) -> dict[str, Any]:
    """The same for Media Streams of two tracks, which are two legs each."""
    figures = _run("twilio_receiver", "twilio_sender", [str(_free_port()), str(streams), str(seconds)], noise=noise)
    usual_streams = min(streams, BASELINE_LEGS // 4)
    arguments = [str(_free_port()), str(usual_streams), str(seconds)]
    usual = _run("twilio_baseline", "twilio_sender", arguments, noise=noise) if baseline else None
    return {"streams": streams} | _row(2 * streams, seconds, figures, 2 * usual_streams, usual)


def measure_sip(calls: int, seconds: float, *, baseline: bool = True, noise: bool = False) -> dict[str, Any]:
    """The same for recording sessions by SIP, which are two legs each; the usual design has no signalling."""
    arguments = [str(_free_port()), str(calls), str(seconds)]
    figures = _run("sip_receiver", "sip_sender", arguments, noise=noise)
    usual = _usual_rtp(2 * calls, seconds, baseline=baseline, noise=noise)
    more = {name: figures["sender"][name] for name in ("repeated", "setup_s")}
    more |= {name: figures["receiver"][name] for name in ("setup_cpu_ms_per_call", "rtcp_sent", "refused", "dropped")}
    return {"calls": calls} | _row(2 * calls, seconds, figures, *usual) | more


def _usual_rtp(legs: int, seconds: float, *, baseline: bool, noise: bool) -> tuple[int, dict[str, Any] | None]:
    """So many legs through the usual design, and its figures; None without a baseline."""
    legs = min(legs, BASELINE_LEGS)
    return legs, _run(
        "aiortc_baseline", "rtp_sender", [_free_range(legs), str(seconds)], noise=noise
    ) if baseline else None


def _row(
    legs: int, seconds: float, figures: dict[str, Any], usual_legs: int, usual: dict[str, Any] | None
) -> dict[str, Any]:
    receiver, sender = figures["receiver"], figures["sender"]
    cpu_s_per_leg_s = _cost(figures)
    row: dict[str, Any] = {
        "legs": legs,
        "seconds": seconds,
        "packets_sent": sender["sent"],
        "packets_received": receiver["packets"],
        "cpu_share": round(cpu_s_per_leg_s * legs, 4),
        "cpu_s_per_leg_s": cpu_s_per_leg_s,
        "loop_stall_p99_ms": receiver["loop_stall_p99_ms"],
        "vad_lag_p50_ms": receiver["vad_lag_p50_ms"],
        "vad_lag_p99_ms": receiver["vad_lag_p99_ms"],
        "vad_lag_max_ms": receiver["vad_lag_max_ms"],
        "vad_lag_steady_p99_ms": receiver["vad_lag_steady_p99_ms"],
        "slowed_share": receiver["slowed_share"],
        "utterances": receiver["utterances"],
        "events": receiver["events"],
        "rss_mb": receiver["rss_mb"],
        "sender_late_slots": sender["late_slots"],
        "baseline_legs": None,
        "baseline_cpu_s_per_leg_s": None,
        "ratio": None,
    }
    if usual is not None:
        row["baseline_legs"] = usual_legs
        row["baseline_cpu_s_per_leg_s"] = _cost(usual)
        row["ratio"] = round(row["baseline_cpu_s_per_leg_s"] / cpu_s_per_leg_s, 1)
    return row


def _cost(figures: dict[str, Any]) -> float:
    """CPU time for one leg's audio of a second; the legs began one after the other, so packets tell how much it was."""
    cost: float = figures["receiver"]["cpu_s"] / (figures["sender"]["sent"] * PTIME_S)
    return cost


def has_baseline() -> bool:
    try:
        import aiortc  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        return False
    return True


def _run(receiver: str, sender: str, arguments: list[str], *, noise: bool, silence: bool = False) -> dict[str, Any]:
    environment = os.environ | _ENVIRONMENT
    command = [sys.executable, "-m", f"benchmarks.media.{receiver}", *arguments, *(["silence"] if silence else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as under_test:
        assert under_test.stdout is not None
        if under_test.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{receiver} did not start")
        command = [sys.executable, "-m", f"benchmarks.media.{sender}", *arguments, *(["noise"] if noise else [])]
        sent = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment, cwd=ROOT)
        answer = under_test.stdout.read()
    return {"receiver": json.loads(answer), "sender": json.loads(sent.stdout)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
