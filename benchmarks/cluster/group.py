"""What three NATS servers with three copies hold, and what the copies cost: `python -m benchmarks.cluster.group`.

One worker tells the events of its calls as `benchmarks.events.script` makes them; another one, without calls, keeps
the copy that every worker keeps. Then a third one's outbox is given a backlog, which it publishes as fast as the
group takes it. All run on this machine: three servers on disks of their own take more, and answer later.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.cluster.engine_servers import BenchError
from benchmarks.cluster.speaker import joined, settings
from benchmarks.events.script import LEGS, WORDS, opened
from mediaworker.events import schema as events
from mediaworker.events.hub import EventHub
from mediaworker.events.store import EventStore
from mediaworker.ops.logs import configure

SERVERS = 3
BACKLOG, BACKLOG_CALLS = 20_000, 500
UNSAVED = 2000
"""Events that wait for the store; it refuses them at five times as many."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster.group")
    parser.add_argument("--calls", type=int, default=250)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _group(Path(folder)) as (url, processes):
        row = uvloop.run(_measure(url, processes, Path(folder), options.calls, options.seconds))
    text = json.dumps(row, indent=2)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n", encoding="utf-8")


async def _measure(
    url: str, servers: list[subprocess.Popen[bytes]], folder: Path, calls: int, seconds: float
) -> dict[str, Any]:
    own = settings(url, str(folder / "copy"), SERVERS)
    configure(own.log)
    hub = EventHub(own, EventStore(folder / "copy"))
    await hub.start()
    member = await joined(url, str(folder / "copy"), hub, SERVERS)
    try:
        row = await _talked(url, servers, folder, calls, seconds, lambda: member.mirror.counters.messages)
        return row | await _published(url, folder / "backlog")
    finally:
        await member.stop()
        await hub.stop()


async def _talked(
    url: str, servers: list[subprocess.Popen[bytes]], folder: Path, calls: int, seconds: float, taken: Any
) -> dict[str, Any]:
    """This process keeps the copy, another one has the calls."""
    command = [sys.executable, "-m", "benchmarks.cluster.speaker", url, str(calls), str(seconds), str(SERVERS)]
    pipe = asyncio.subprocess.PIPE
    speaker = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert speaker.stdin is not None and speaker.stdout is not None
    if await speaker.stdout.readline() != b"ready\n":
        raise BenchError("the worker that speaks did not start")
    before = time.process_time(), sum(_cpu_s(each.pid) for each in servers), _bytes(folder / "n0"), taken()
    speaker.stdin.write(b"\n")
    await speaker.stdin.drain()
    figures = json.loads(await asyncio.wait_for(speaker.stdout.readline(), seconds + 30))
    after = time.process_time(), sum(_cpu_s(each.pid) for each in servers), _bytes(folder / "n0"), taken()
    await speaker.wait()
    copy_s, nats_s, stored, messages = (now - then for now, then in zip(after, before, strict=True))
    return {
        "calls": calls,
        "seconds": seconds,
        "messages_per_s": round(messages / seconds, 1),
        "messages_per_call_s": round(messages / seconds / calls, 3),
        "speaker_cpu": round(figures["cpu_share"], 4),
        "copy_cpu": round(copy_s / seconds, 4),
        "copy_cpu_per_1000_calls": round(1000 * copy_s / seconds / calls, 4),
        "nats_cpu": round(nats_s / seconds, 4),
        "nats_cpu_per_1000_calls": round(1000 * nats_s / seconds / calls, 4),
        "bytes_per_message": round(stored / max(1, messages)),
        "mb_per_call_hour": round(stored / 1e6 / seconds * 3600 / calls, 2),
    }


async def _published(url: str, folder: Path) -> dict[str, Any]:
    """A worker that joins with this many events in its store."""
    own = settings(url, str(folder), SERVERS)
    hub = EventHub(own, EventStore(folder))
    await hub.start()
    try:
        member = await joined(url, str(folder), hub, SERVERS)
        text = " ".join(WORDS)
        for number in range(BACKLOG_CALLS):
            opened(hub.publish, f"late{number}")
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        for number in range(BACKLOG):
            call_id, leg = f"late{number % BACKLOG_CALLS}", LEGS[number % 2]
            final = events.TranscriptFinal(
                leg.leg, leg.role, f"{call_id}/{number}", 1, 0, 100, text, len(text), "en", 0, 20, "endpoint"
            )
            hub.publish(call_id, 100, final)
            while hub.event_log.backlog >= UNSAVED:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        while member.outbox.counters.published < BACKLOG:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        took_s = time.monotonic() - begun_s
        await member.stop()
        return {
            "backlog_events_per_s": round(BACKLOG / took_s),
            "backlog_cpu": round((time.process_time() - begun_cpu_s) / took_s, 2),
        }
    finally:
        await hub.stop()


@contextlib.contextmanager
def _group(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Raises BenchError."""
    program = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise BenchError("there is no nats-server (Debian: apt install nats-server)")
    clients, routes = _ports(SERVERS), _ports(SERVERS)
    others = ",".join(f"nats://127.0.0.1:{each}" for each in routes)
    processes = []
    for number, (client, route) in enumerate(zip(clients, routes, strict=True)):
        command = [program, "-a", "127.0.0.1", "-p", str(client), "-js", "-sd", str(folder / f"n{number}")]
        command += ["-n", f"n{number}", "--cluster_name", "bench", "--cluster", f"nats://127.0.0.1:{route}"]
        command += ["--routes", others]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    try:
        yield f"nats://127.0.0.1:{clients[0]}", processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        made = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in made]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _bytes(folder: Path) -> int:
    """Of what a server keeps: one of the copies."""
    return sum(path.stat().st_size for path in folder.rglob("*.blk"))


if __name__ == "__main__":
    main()
