"""Long responses: streams of server-sent events with heartbeats, and work that ends when its client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from config.process.tasks import end_tasks

T = TypeVar("T")


class ServerSentEvents(StreamingResponse):
    """A response of server-sent events. `stack` holds the resources that it uses, and is closed when it ends."""

    def __init__(self, events: AsyncIterator[bytes], stack: contextlib.AsyncExitStack) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.headers["Content-Type"] = "text/event-stream; charset=utf-8"
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


@contextlib.asynccontextmanager
async def begun(events: AsyncGenerator[bytes, None]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Wait for the first event, then yield an iterator over all events. So an error that comes before the first event
    can still be answered with an HTTP status, because nothing has been sent yet."""
    async with aclosing(events):
        first = await anext(events)

        async def all_of_them() -> AsyncIterator[bytes]:
            yield first
            async for event in events:
                yield event

        yield all_of_them()


async def beating(items: AsyncGenerator[T, None], every_s: float) -> AsyncGenerator[T | None, None]:
    """Yield the items, and None whenever there has been no item for `every_s`."""
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
    """Return the result of the work. When the client disconnects first, cancel it and raise ClientDisconnect."""

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
