"""What a user would pick instead, on the same streams and the same core: `make peers`.

    python -m tools.peers [--streams 4,25] [--seconds 10] [--rounds 3] [--only pipecat,livekit] [--json FILE]

Twilio streams of one track, speech with noise in its pauses, no recognition. Each round measures everybody in turn on
one core, since the speed of a machine changes; the figures are medians. Each peer has an environment of its own in
`build/peers`, with the versions of `tools/peers/*.txt`. docs/measurements/performance.md says what is unfair in it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.media.rtp_sender import PTIME_S
from lab.house import ROOT

PEERS = {"pipecat": "pipecat, its Twilio transport with Silero", "livekit": "livekit's Silero, the VAD alone"}
OURS = "mediaworker"


def environment(name: str) -> Path:
    """Its Python, installed if it is not there."""
    folder, wanted = ROOT / "build" / "peers" / name, ROOT / "tools" / "peers" / f"{name}.txt"
    noted = folder / "installed.txt"
    if not noted.is_file() or noted.read_text() != wanted.read_text():
        print(f"peers: installing {name}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", wanted]
        subprocess.run([str(each) for each in command], check=True)
        noted.write_text(wanted.read_text())
    return folder / "bin" / "python"


def measure(name: str, streams: int, seconds: float, core: int) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [str(port), str(streams), str(seconds)]
    command = [sys.executable, "-m", "benchmarks.media.twilio_receiver", *arguments]
    if name != OURS:
        command = [str(environment(name)), str(ROOT / "tools" / "peers" / f"{name}_receiver.py"), *arguments]
    environ = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    pinned = ["taskset", "-c", str(core), *command]
    with subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT) as under_test:
        assert under_test.stdout is not None
        if under_test.stdout.readline().strip() != "ready":
            raise SystemExit(f"peers: {name} did not start")
        sender = [sys.executable, "-m", "benchmarks.media.twilio_sender", *arguments, "noise", "one-track"]
        sent = subprocess.run(sender, stdout=subprocess.PIPE, text=True, check=True, env=environ, cwd=ROOT)
        answer = under_test.stdout.read().strip().splitlines()
    receiver, sender_told = json.loads(answer[-1]), json.loads(sent.stdout)
    cpu_ms = 1000 * receiver["cpu_s"] / (sender_told["sent"] * PTIME_S)
    return {
        "name": name, "streams": streams, "cpu_ms_per_stream_s": cpu_ms,
        "received": receiver["packets"] / max(1, sender_told["sent"]), "utterances": receiver["utterances"],
        "rss_mb": receiver["rss_mb"], "blocked": sender_told["blocked"],
    }  # fmt: skip


def _cost(run: dict[str, Any]) -> float:
    cost: float = run["cpu_ms_per_stream_s"]
    return cost


def _line(row: dict[str, Any]) -> str:
    name, received = PEERS.get(row["name"], row["name"]), 100 * row["received"]
    cost = f"{row['cpu_ms_per_stream_s']:7.2f} ms of CPU a stream-second {row['ratio']:6.1f} times"
    heard = f"{received:5.1f} % received {row['utterances']:5d} utterances {row['rss_mb']:5.0f} MB"
    return f"{name:40s} {row['streams']:4d} streams {cost} {heard}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", default="4,25", help="at once, one load after the other")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PEERS), help="of pipecat and livekit")
    parser.add_argument("--core", type=int, default=0, help="on which everybody is measured")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = [OURS, *given.only.split(",")]
    for name in names[1:]:
        environment(name)
    rows = []
    for streams in map(int, given.streams.split(",")):
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(given.rounds):
            for name in names:
                runs[name].append(measure(name, streams, given.seconds, given.core))
        middle = {name: sorted(each, key=_cost)[len(each) // 2] for name, each in runs.items()}
        for name in names:
            row = middle[name] | {"ratio": _cost(middle[name]) / _cost(middle[OURS])}
            rows.append(row)
            print(_line(row), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
