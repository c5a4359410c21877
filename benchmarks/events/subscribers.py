"""Subscribers: `python -m benchmarks.events.subscribers PORT CALLS SUBSCRIBERS ALL STALLED SECONDS`.

`ALL` of them follow every call, the others one each; `STALLED` more follow every call and never read.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import sys
import time

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

STAMP = re.compile(r'"text": ?"(\d+\.\d+) ')
SMALL = 4096
"""Bytes that the kernel keeps for who does not read: the server's side is to feel it at once."""


class Tally:
    """Latencies of texts, and everything that came."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.events = self.lost = 0


async def follow(url: str, tally: Tally, ready: asyncio.Event, until: asyncio.Event) -> None:
    async with connect(url, compression=None, max_size=None, ping_interval=None) as connection:
        await connection.recv()
        ready.set()
        try:
            async for message in connection:
                now = time.monotonic()
                assert isinstance(message, str)
                tally.events += 1
                if found := STAMP.search(message):
                    tally.latencies_s.append(now - float(found[1]))
        except ConnectionClosed:
            pass
        tally.lost += not until.is_set()


async def stall(port: int) -> ClientConnection:
    """Subscribed to everything, and deaf from then on."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    uri = f"ws://127.0.0.1:{port}/v1/events"
    connection = await connect(uri, sock=raw, compression=None, max_size=None, ping_interval=None)
    connection.transport.pause_reading()
    return connection


async def main(port: int, calls: int, subscribers: int, everything: int, stalled: int, seconds: float) -> None:
    base = f"ws://127.0.0.1:{port}/v1/events?call="
    tally, until = Tally(), asyncio.Event()
    urls = [base + ("*" if number < everything else f"call{number % calls}") for number in range(subscribers)]
    deaf = [await stall(port) for _ in range(stalled)]
    tasks = []
    for url in urls:
        ready = asyncio.Event()
        tasks.append(asyncio.create_task(follow(url, tally, ready, until)))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({waiting, tasks[-1]}, return_when=asyncio.FIRST_COMPLETED)
        if tasks[-1].done():
            tasks[-1].result()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(seconds)
    until.set()
    after = resource.getrusage(resource.RUSAGE_SELF)
    latencies = np.array(tally.latencies_s or [0.0]) * 1000
    figures = {
        "deliveries": tally.events,
        "p50_ms": round(float(np.percentile(latencies, 50)), 2),
        "p99_ms": round(float(np.percentile(latencies, 99)), 2),
        "max_ms": round(float(latencies.max()), 2),
        "lost_subscribers": tally.lost,
        "subscribers_cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
    assert len(deaf) == stalled


if __name__ == "__main__":
    import os

    import uvloop

    from mediaworker.access.connections import raise_open_files

    raise_open_files()
    port, calls, subscribers, everything, stalled = (int(text) for text in sys.argv[1:6])
    uvloop.run(main(port, calls, subscribers, everything, stalled, float(sys.argv[6])))
    os._exit(0)
