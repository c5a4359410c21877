"""What an engine server spends on what it forwards: `python -m benchmarks.cluster.forwarded`.

Its engine answers at once. A worker's recognizer sends utterances of five seconds as calls do, with audio in pieces of
200 ms, a partial for every half second and a final, as fast as the answers come; what counts is the CPU time of the
server's two processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from asr.client.recognizer import Recognizer
from asr.utterance import Hypothesis, Utterance
from benchmarks import ROOT
from benchmarks.cluster.engine_servers import TOKEN, install, ready, server
from config.sections.section import Secret
from config.settings import Asr, Cluster, Settings

LEGS = 100
PIECE = b"\xff" * 1600
"""200 ms."""
PIECES, PARTIAL_EVERY = 25, 2
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster.forwarded")
    parser.add_argument("--utterances", type=int, default=3000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder / "site")
        os.environ["PYTHONPATH"] = os.pathsep.join((str(folder / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")))
        sys.path.insert(0, str(folder / "site"))
        cluster = Cluster(token=Secret(TOKEN))
        with server(folder, cluster) as (port, pid):
            row = uvloop.run(_measure(options.utterances, port, pid, cluster))
    print(json.dumps(row, indent=2))


async def _measure(utterances: int, port: int, pid: int, cluster: Cluster) -> dict[str, Any]:
    settings = Settings(asr=Asr(servers=(f"tcp://127.0.0.1:{port}",)), cluster=cluster)
    async with ready(settings) as recognizer:
        await _leg(recognizer, "warm", 5)
        own_s, server_s, inference_s = time.process_time(), _cpu_s(pid), sum(map(_cpu_s, _children(pid)))
        begun_s = time.monotonic()
        await asyncio.gather(*(_leg(recognizer, f"leg-{leg}", utterances // LEGS) for leg in range(LEGS)))
        took_s = time.monotonic() - begun_s
        own_s, server_s = time.process_time() - own_s, _cpu_s(pid) - server_s
        inference_s = sum(map(_cpu_s, _children(pid))) - inference_s
    count = utterances // LEGS * LEGS
    return {
        "utterances": count,
        "per_s": round(count / took_s),
        "server_ms_per_utterance": round(1000 * server_s / count, 3),
        "inference_ms_per_utterance": round(1000 * inference_s / count, 3),
        "recognizer_ms_per_utterance": round(1000 * own_s / count, 3),
        "people_per_core_of_the_server": round(count * PIECES * 0.2 / server_s),
    }


async def _leg(recognizer: Recognizer, leg: str, utterances: int) -> None:
    """One after the other; each answer is waited for, so no request replaces another."""
    for number in range(utterances):
        name, heard = f"{leg}/{number}", asyncio.Queue[Hypothesis]()
        recognizer.open(Utterance(name, "PCMU", stream=leg), heard.put_nowait)
        for piece in range(1, PIECES + 1):
            recognizer.append(name, PIECE)
            if piece % PARTIAL_EVERY == 0:
                recognizer.partial(name, piece)
                await heard.get()
            else:
                await asyncio.sleep(0)
        recognizer.final(name, PIECES + 1, commit=True)
        await heard.get()


def _children(pid: int) -> list[int]:
    return [
        int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in (task / "children").read_text().split()
    ]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


if __name__ == "__main__":
    main()
