"""Answers that take their time: streams of events with heartbeats, and work that ends when its client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from config.tasks import end_tasks

T = TypeVar("T")


class ServerSentEvents(StreamingResponse):
    """`stack`: what it lasts as long as."""

    def __init__(self, events: AsyncIterator[bytes], stack: contextlib.AsyncExitStack) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.headers["Content-Type"] = "text/event-stream; charset=utf-8"
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


@contextlib.asynccontextmanager
async def begun(events: AsyncGenerator[bytes, None]) -> AsyncIterator[AsyncIterator[bytes]]:
    """With the first already there: what is wrong with a file is a status as long as nothing has been sent."""
    async with aclosing(events):
        first = await anext(events)

        async def all_of_them() -> AsyncIterator[bytes]:
            yield first
            async for event in events:
                yield event

        yield all_of_them()


async def beating(items: AsyncGenerator[T, None], every_s: float) -> AsyncGenerator[T | None, None]:
    """None whenever there has been nothing for so long."""
    async with aclosing(items):
        coming: asyncio.Task[T] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(items))
                done, _ = await asyncio.wait({coming}, timeout=every_s)
                if not done:
                    yield None
                    continue
                ready, coming = coming, None
                try:
                    yield ready.result()
                except StopAsyncIteration:
                    return
        finally:
            await end_tasks(coming)


async def while_there(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Raises ClientDisconnect when the client has gone; the work ends with it."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        await end_tasks(working, leaving)
