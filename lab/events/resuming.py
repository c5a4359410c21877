"""A client whose connections are cut and whose server is restarted meanwhile: what it saw is what was stored."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

from lab.events.samples import final, partial, speech, started
from lab.http.api_server import running_api
from lab.network.cutting_proxy import CuttingProxy
from lab.patience import timeout
from mediaworker.client import Client, schema
from mediaworker.events.frame import decode
from mediaworker.events.hub import EventHub


async def cut_and_restart(directory: Path, *, cuts: int, restarts: int, types: frozenset[str] | None = None) -> int:
    """Events all the while; how many durable ones the client saw. `make soak` asks for more."""
    rng = random.Random(cuts)
    seen: list[str] = []
    done = asyncio.Event()

    async def read(url: str) -> None:
        stream = Client(url).events(types=types, patient=True, after=None)
        async for frame in stream.frames():
            event = decode(frame)
            if schema.is_durable(event.body):
                seen.append(frame)
            if event.call_id == "last" and event.body == started():
                done.set()

    async with CuttingProxy() as proxy:
        reader: asyncio.Task[None] | None = None
        made = 0
        for life in range(restarts + 1):
            async with running_api(directory) as api:
                proxy.target = api.server.port
                if reader is None:
                    reader = asyncio.create_task(read(f"http://127.0.0.1:{proxy.port}"))
                    while not api.hub.subscribers:  # noqa: ASYNC110  what is waited for tells nobody
                        await asyncio.sleep(0.01)
                made = 0
                while made < cuts // (restarts + 1):
                    _say(api.hub, rng, life)
                    await asyncio.sleep(rng.choice((0, 0, 0.005, 0.02)))
                    made += rng.random() < 0.3 and proxy.cut()
                if life == restarts:
                    api.hub.publish("last", 0, started())
                    async with timeout(30):
                        await done.wait()
                    pages = await api.hub.read(lambda found: found.page(0, 2**62, 10**6, call_id=None, types=types))
                proxy.target = None
        assert reader is not None
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
        assert seen == [frame for _, frame in pages], "neither a gap nor a double, in order"
        assert proxy.connections > cuts // 2
    return len(seen)


def _say(hub: EventHub, rng: random.Random, life: int) -> None:
    """Something in one of five calls, which begin and end."""
    call_id = f"c{life}.{rng.randrange(5)}"
    if hub._latest.get(call_id) is None:
        hub.publish(f"{call_id}", 0, started())
        return
    name = f"{call_id}/{rng.random()}"
    hub.publish(call_id, 1, speech(name))
    for revision in range(rng.randrange(4)):
        hub.publish(call_id, 2, partial(name, revision))
    hub.publish(call_id, 3, final(name, "x" * rng.choice((1, 100, 5000))))
