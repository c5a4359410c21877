"""Calls and their subscribers: `python -m benchmarks.events.server ours|usual PORT CALLS SECONDS`.

`ours` is the worker's hub, store and HTTP side; `usual` keeps a list of WebSockets and sends each event to one after
the other, encoded for each, as tutorials do. Neither recognises anything: the events are a script's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from benchmarks.events.script import Publish, opened, talk
from config.load import parse
from mediaworker.events import schema as events

PROBE_S = 0.005
SETTLE_S = 0.5
"""The calls are in the store, and may be asked for."""


@contextlib.asynccontextmanager
async def ours(port: int, folder: str) -> AsyncIterator[Publish]:
    from config.metrics.registry import MetricsRegistry
    from mediaworker.calls.directory import CallDirectory
    from mediaworker.events.hub import EventHub
    from mediaworker.events.store import EventStore
    from mediaworker.http.resources.app import ApiContext, HttpServer, create_app

    settings = parse({"http": {"host": "127.0.0.1", "port": port}, "data_dir": folder, "log": {"level": "error"}})
    hub = EventHub(settings, EventStore(folder))
    await hub.start()
    context = ApiContext(
        settings, hub, MetricsRegistry(), CallDirectory(hub, {}), report=lambda: ([], {"warnings": []})
    )
    server = HttpServer(create_app(context), settings)
    await server.start()
    try:
        yield hub.publish
    finally:
        await server.stop()
        await hub.stop()


@contextlib.asynccontextmanager
async def usual(port: int, folder: str) -> AsyncIterator[Publish]:
    import uvicorn
    from msgspec import to_builtins
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect

    listening: dict[WebSocket, str] = {}
    queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def subscribe(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_json({"type": "hello"})
        listening[websocket] = websocket.query_params.get("call", "*")
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await websocket.receive_text()
        listening.pop(websocket, None)

    async def broadcast() -> None:
        while True:
            event = await queue.get()
            for websocket, call in tuple(listening.items()):
                if call in ("*", event["call_id"]):
                    try:
                        await websocket.send_json(event)
                    except (RuntimeError, WebSocketDisconnect):
                        listening.pop(websocket, None)

    def publish(call_id: str, at_ms: int, body: events.EventBody) -> None:
        queue.put_nowait({"call_id": call_id, "at_ms": at_ms} | to_builtins(body))

    app = Starlette(routes=[WebSocketRoute("/v1/events", subscribe)])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="off"))
    tasks = [asyncio.create_task(server.serve()), asyncio.create_task(broadcast())]
    while not server.started:  # noqa: ASYNC110  uvicorn tells nobody
        await asyncio.sleep(0.01)
    try:
        yield publish
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def main(design: str, port: int, calls: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with {"ours": ours, "usual": usual}[design](port, folder) as publish:
            for number in range(calls):
                opened(publish, f"call{number}")
            await asyncio.sleep(SETTLE_S)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.readline)
            talking = [asyncio.create_task(talk(publish, f"call{number}", number)) for number in range(calls)]
            stalls: list[float] = []
            probe = asyncio.create_task(_probe(stalls))
            before = resource.getrusage(resource.RUSAGE_SELF)
            await asyncio.sleep(seconds)
            after = resource.getrusage(resource.RUSAGE_SELF)
            probe.cancel()
            for task in talking:
                task.cancel()
            figures = {
                "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                "rss_mb": round(after.ru_maxrss / 1024, 1),
                "loop_stall_p99_ms": round(float(np.percentile(stalls, 99)) * 1000, 2),
            }
            sys.stdout.write(json.dumps(figures) + "\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.readline)


async def _probe(stalls: list[float]) -> None:
    while True:
        due = time.monotonic() + PROBE_S
        await asyncio.sleep(PROBE_S)
        stalls.append(max(0.0, time.monotonic() - due))


if __name__ == "__main__":
    import os

    import uvloop

    from mediaworker.access.connections import raise_open_files

    raise_open_files()
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
    os._exit(0)  # connections that are never read would hold up an orderly end
