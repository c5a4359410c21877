"""The two ways a media session is served, each on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import uvicorn
from starlette.applications import Starlette

from config.load import parse
from lab.patience import eventually, timeout
from mediaworker.ingress.listener import MediaListener
from mediaworker.ingress.runner import websocket_routes
from mediaworker.ingress.twilio.routes import STREAM, TwilioIngress, webhook_routes

TIMEOUT_S = 10


async def until(condition):
    await eventually(condition, TIMEOUT_S)


@contextlib.asynccontextmanager
async def media_port(endpoint, throttle, max_bytes):
    settings = parse({"media": {"host": "127.0.0.1", "port": 0, "max_message_bytes": max_bytes}}).media
    listener = MediaListener(settings, {STREAM: endpoint}, throttle)
    await listener.start()
    ticks = asyncio.create_task(sweep(listener))
    try:
        yield listener.port
    finally:
        ticks.cancel()
        async with timeout(TIMEOUT_S):
            await listener.stop()


async def sweep(listener):
    """What the media tick does for the listener's connections."""
    while True:
        for _ in listener.sweep():
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def http_port(endpoint, throttle, max_bytes):
    served = websocket_routes({STREAM: endpoint}, throttle, max_bytes=max_bytes)
    if isinstance(endpoint, TwilioIngress):
        served += webhook_routes(endpoint)
    async with asgi_port(Starlette(routes=served)) as port:
        yield port


@contextlib.asynccontextmanager
async def asgi_port(app):
    """Uvicorn as the worker runs it."""
    config = uvicorn.Config(app, ws="websockets-sansio", ws_per_message_deflate=False, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve([listening]))
        await until(lambda: server.started)
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            async with timeout(TIMEOUT_S):
                await task
