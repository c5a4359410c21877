"""A worker's events without its calls: `python -m benchmarks.cluster.speaker NATS CALLS SECONDS [REPLICAS]`; NATS
may be `alone`. With `--no-copy` it tells its own events, and does not read those of all.

It says `ready`, waits for a line, lets the script of `benchmarks.events` talk, and says what CPU time that took.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks.events.script import opened, talk
from config import Settings
from config.load import parse
from mediaworker.calls.registry import CallRegistry
from mediaworker.cluster.member import ClusterMember
from mediaworker.events.hub import EventHub
from mediaworker.events.store import EventStore
from mediaworker.ops.logs import configure

JOIN_S = 20.0


def settings(nats: str, folder: str, replicas: int = 1) -> Settings:
    return parse({"data_dir": folder, "log": {"level": "error"}, "cluster": {"nats": [nats], "replicas": replicas}})


async def joined(nats: str, folder: str, hub: EventHub, replicas: int = 1, *, copies: bool = True) -> ClusterMember:
    """Raises TimeoutError."""
    own = settings(nats, folder, replicas)
    member = ClusterMember(own, hub, cast(CallRegistry, None))  # nobody asks it for a call
    if not copies:
        member.mirror.start = lambda: None  # type: ignore[method-assign]
    member.start()
    async with asyncio.timeout(JOIN_S):
        while not member.events.started:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return member


async def main(nats: str, calls: int, seconds: float, replicas: int = 1, *, copies: bool = True) -> None:
    with tempfile.TemporaryDirectory() as folder:
        own = settings("nats://127.0.0.1:1", folder)
        configure(own.log)
        hub = EventHub(own, EventStore(Path(folder)))
        await hub.start()
        member = None if nats == "alone" else await joined(nats, folder, hub, replicas, copies=copies)
        for number in range(calls):
            opened(hub.publish, f"call{number}")
        await asyncio.sleep(1)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        talking = [asyncio.create_task(talk(hub.publish, f"call{number}", number)) for number in range(calls)]
        before, begun_s = _cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        figures: dict[str, Any] = {"cpu_share": (_cpu_s() - before) / (time.monotonic() - begun_s)}
        for task in talking:
            task.cancel()
        figures["events"] = sum(hub.published.values())
        print(json.dumps(figures), flush=True)
        if member is not None:
            await member.stop()
        await hub.stop()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    words = [each for each in sys.argv[1:] if not each.startswith("--")]
    made = main(words[0], int(words[1]), float(words[2]), *map(int, words[3:]), copies="--no-copy" not in sys.argv)
    uvloop.run(made)
