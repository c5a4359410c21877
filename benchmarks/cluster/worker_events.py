"""`mediaworker bench cluster --calls N`: what it costs a worker to tell its events to others, and how late those are.

A worker alone and one in a cluster with a real NATS server have the same calls, in which somebody always speaks. A
second worker has a subscriber, which compares clocks: finals and partials begin with the time at which they were said.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.cluster.engine_servers import BenchError
from benchmarks.cluster.speaker import joined, settings
from mediaworker.events.hub import EventHub
from mediaworker.events.store import EventStore
from mediaworker.ops.logs import configure

KINDS = ("transcript.final", "transcript.partial")


def measure(calls: int, seconds: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Raises BenchError."""
    with tempfile.TemporaryDirectory() as folder:
        progress(f"{calls} calls for {seconds:g} s, alone …")
        alone = uvloop.run(_alone("alone", calls, seconds))
        progress(f"{calls} calls for {seconds:g} s, in a cluster …")
        with _nats(Path(folder)) as url:
            row = uvloop.run(_together(url, calls, seconds, str(Path(folder) / "other")))
        progress("the same without the copy of all events …")
        with _nats(Path(folder) / "again") as url:
            telling = uvloop.run(_alone(url, calls, seconds))

    def added(cpu_share: float) -> float:
        """In percent of a core, for 1,000 legs."""
        return float(100 * (cpu_share - alone["cpu_share"]) / (2 * calls) * 1000)

    return {
        "legs": 2 * calls,
        "alone_cpu_percent": 100 * alone["cpu_share"],
        "telling_percent": added(telling["cpu_share"]),
        "per_1000_legs_percent": added(row.pop("cpu_share")),
        **row,
    }


def table(row: dict[str, Any]) -> list[tuple[str, ...]]:
    head = (
        "legs",
        "alone, % of a core",
        "more with outbox and lease, per 1,000 legs",
        "more in a cluster, per 1,000 legs",
        *(f"{kind} p50 / p99 ms" for kind in KINDS),
    )
    late = (f"{row[f'{kind}_p50_ms']:.1f} / {row[f'{kind}_p99_ms']:.1f}" for kind in KINDS)
    shares = (f"{row[name]:.1f}" for name in ("alone_cpu_percent", "telling_percent", "per_1000_legs_percent"))
    return [head, (str(row["legs"]), *shares, *late)]


async def _alone(nats: str, calls: int, seconds: float) -> dict[str, Any]:
    """Nobody listens, and it reads nothing of others."""
    process = await _speaker(nats, calls, seconds, "--no-copy")
    await _begin(process)
    return await _figures(process, seconds)


async def _together(url: str, calls: int, seconds: float, folder: str) -> dict[str, Any]:
    own = settings(url, folder)
    configure(own.log)
    hub = EventHub(own, EventStore(Path(folder)))
    await hub.start()
    member = await joined(url, folder, hub)
    process = await _speaker(url, calls, seconds)
    late: dict[str, list[float]] = {kind: [] for kind in KINDS}
    subscription = member.feed().subscribe(types=frozenset(KINDS))

    async def listen() -> None:
        frames = aiter(subscription)
        await anext(frames)
        async for frame in frames:
            now_s, event = time.monotonic(), json.loads(frame)
            late[event["type"]].append(1000 * (now_s - float(event["text"].split()[0])))

    listening = asyncio.create_task(listen())
    try:
        await _begin(process)
        row = await _figures(process, seconds)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        subscription.close()
        await member.stop()
        await hub.stop()
    for kind, times in late.items():
        if not times:
            raise BenchError(f"the other worker has heard no {kind}")
        times.sort()
        row |= {f"{kind}_p{part}_ms": times[len(times) * part // 100] for part in (50, 99)}
    return row


async def _speaker(nats: str, calls: int, seconds: float, *options: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "benchmarks.cluster.speaker", nats, str(calls), str(seconds), *options]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    if await process.stdout.readline() != b"ready\n":
        raise BenchError("the worker that speaks did not start")
    return process


async def _begin(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    await process.stdin.drain()


async def _figures(process: asyncio.subprocess.Process, seconds: float) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(await asyncio.wait_for(process.stdout.readline(), seconds + 30))
    await process.wait()
    return found


@contextlib.contextmanager
def _nats(folder: Path) -> Iterator[str]:
    """A server of its own. Raises BenchError."""
    program = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise BenchError("there is no nats-server (Debian: apt install nats-server)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "nats")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
