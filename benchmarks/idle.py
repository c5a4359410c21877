"""What an idle worker costs, and what it costs to wake it: memory and CPU of the media process after start, with and
without SIP; then a call that finds no inference process, one that finds it, and the memory when it has gone again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from websockets.sync.client import connect

from benchmarks import ROOT

SECONDS = 10.0
IDLE_S = 3.0
MODEL = ROOT / "models" / "qwen3-asr-tiny"
SPEECH = ROOT / "tests" / "data" / "digits" / "long.ulaw"
COMMAND = [sys.executable, "-m", "mediaworker.cli.main"]


def main() -> None:
    for sip in ("true", "false"):
        rss_mb, cpu_share, children = measure(sip)
        print(f"sip {sip:5}: {rss_mb:.0f} MB RSS, {100 * cpu_share:.2f} % of a core, {children} inference processes")
    for engine in ("qwen", "moonshine"):
        wake(engine)


@contextlib.contextmanager
def running(**environ: str) -> Iterator[tuple[int, int, int]]:
    """(process id, HTTP port, media port) of a worker."""
    ports = [free_port() for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        settings = {"DATA_DIR": folder, "LOG__LEVEL": "error"} | environ
        settings |= {f"{part}__PORT": str(port) for part, port in zip(("HTTP", "MEDIA", "SIP"), ports, strict=True)}
        own = {f"MEDIAWORKER_{key}": value for key, value in settings.items()}
        worker = subprocess.Popen([*COMMAND, "serve"], env=os.environ | own)
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/healthz", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            time.sleep(2)
            yield worker.pid, ports[0], ports[1]
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait()


def measure(sip: str) -> tuple[float, float, int]:
    with running(SIP__ENABLED=sip) as (pid, _, _):
        before = cpu_s(pid)
        time.sleep(SECONDS)
        share = (cpu_s(pid) - before) / SECONDS
        return rss_mb(pid), share, len(children(pid))


def wake(engine: str) -> None:
    """Two calls, one from cold, and what is left of them."""
    more = {"ASR__ENGINE": engine, "ASR__MODEL": str(MODEL), "ASR__IDLE_S": str(IDLE_S), "SIP__ENABLED": "false"}
    with running(**more) as (pid, http, media):
        print(f"{engine}: before {rss_mb(pid):.0f} MB, {len(children(pid))} inference processes")
        for state in ("cold", "warm"):
            words_s, final_s = call(http, media)
            (child,) = children(pid)
            print(
                f"{engine}, {state}: first audio to first words {words_s:.2f} s, to the final {final_s:.2f} s;"
                f" media process {rss_mb(pid):.0f} MB, inference process {rss_mb(child):.0f} MB"
            )
        ended = time.monotonic()
        while children(pid):
            time.sleep(0.05)
        gone_s = time.monotonic() - ended
        print(f"{engine}: after {rss_mb(pid):.0f} MB, no inference process {gone_s:.1f} s after the call")


def call(http: int, media: int) -> tuple[float, float]:
    """Seconds from the stream's first audio, which is speech, to the first words and to the final."""
    with connect(f"ws://127.0.0.1:{http}/v1/events?call=*") as events:
        events.recv()
        at: dict[str, float] = {}
        url = f"ws://127.0.0.1:{media}/twilio/stream"
        caller = subprocess.Popen([*COMMAND, "stream", url, "--play", str(SPEECH)], stdout=subprocess.DEVNULL)
        while "call.ended" not in at:
            at.setdefault(json.loads(events.recv())["type"], time.monotonic())
        caller.wait()
    final = at["transcript.final"]
    return at.get("transcript.partial", final) - at["call.started"], final - at["call.started"]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1024**2


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
