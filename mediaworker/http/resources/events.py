"""`/v1/events`: a subscription to the hub, on a WebSocket or as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.frames import Frame, Opcode

from config.process.tasks import end_tasks
from mediaworker.access.local_trust import INCOMING
from mediaworker.events.schema import TYPES
from mediaworker.events.store import StoreError
from mediaworker.events.subscription import EXPIRED, Subscription, SubscriptionClosed
from mediaworker.http.context import ApiContext
from mediaworker.http.problem import Problem
from mediaworker.http.streams import ServerSentEvents, beating, begun

CALL_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")
BURST = 32
"""The most frames that a subscriber is sent in one turn of the loop while it catches up. Sends to a socket with room do
not suspend, so without this limit one subscriber could hold up the loop."""
AT_ONCE = 1000
"""The most frames that publishers send directly in one turn of the loop, over all subscribers; each takes 10 to 15 µs.
Further frames wake the subscribers' own tasks."""
TRY_LATER = 1013
RETRY_MS = 1000
"""The time after which a client of server-sent events reconnects."""
HEARTBEAT = '{"v":1,"type":"heartbeat"}'
"""A heartbeat is not an event: it has no cursor and is not stored."""
POLICY = 1008
MESSAGE_S, MESSAGE_BURST = 0.1, 100
"""The mean interval of a subscriber's messages, and the burst above it that is allowed. Some clients keep a connection
alive with messages; a subscriber that sends more is disconnected."""


def routes(context: ApiContext) -> list[BaseRoute]:
    events = EventRoutes(context)
    return [WebSocketRoute("/v1/events", events.serve), Route("/v1/events", events.stream, methods=["GET"])]


class HeartbeatRequest(msgspec.Struct, frozen=True, tag="heartbeat"):
    """A client's request for heartbeats: the script of a browser sees neither pings nor their absence."""

    every_s: Annotated[int, Meta(ge=1, le=3600)]


class EventRoutes:
    """The endpoints of `/v1/events`. An invalid request is answered before the upgrade. A bad cursor is answered after
    it, by close code 4009, and for server-sent events by status 410.
    """

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._frames = FrameWriter()

    async def stream(self, request: Request) -> Response:
        """Server-sent events (HTML Living Standard, section 9.2), each with the JSON of a WebSocket's frame.

        `id` is the cursor to resume after, which the client sends in `Last-Event-ID` when it reconnects.
        """
        self._context.authorize(request, "events")
        if request.method != "GET" or not _accepts_event_stream(request):
            detail = "this is a WebSocket: ask for an upgrade, or for server-sent events (Accept: text/event-stream)"
            raise Problem(426, detail, headers={"Upgrade": "websocket", "Connection": "Upgrade"})
        call, types, after = await self._asked(request)
        if (last := request.headers.get("last-event-id")) is not None:
            after = last  # when a client reconnects, it repeats its first URL, whose `after` is out of date
        try:
            subscription = self._context.events.subscribe(call=call, after=after, types=types)
            async with contextlib.AsyncExitStack() as stack:
                stack.callback(subscription.close)
                messages = _messages(subscription, self._context.settings.events.heartbeat_s)
                return ServerSentEvents(await stack.enter_async_context(begun(messages)), stack.pop_all())
        except SubscriptionClosed as closed:
            raise Problem(410 if closed.code == EXPIRED else 503, closed.reason) from None

    async def serve(self, websocket: WebSocket) -> None:
        access = self._context.authorize(websocket, "events")
        call, types, after = await self._asked(websocket)
        await websocket.accept(access.subprotocol)
        try:
            subscription = self._context.events.subscribe(call=call, after=after, types=types)
        except SubscriptionClosed as closed:
            await _close(websocket, closed.code, closed.reason)
            return
        # The reader notices when the subscriber disconnects. The only message that it acts on is the request for
        # heartbeats.
        heartbeat = SubscriberHeartbeat(websocket)
        reader = asyncio.get_running_loop().create_task(_listen(websocket, subscription, heartbeat))
        reader.add_done_callback(lambda _: subscription.close())
        try:
            await self._send(websocket, subscription, heartbeat)
        except SubscriptionClosed as closed:
            await _close(websocket, closed.code, closed.reason)
        except StoreError:
            await _close(websocket, TRY_LATER, "the event store cannot be read")
        except WebSocketDisconnect:
            pass
        finally:
            subscription.close()
            await end_tasks(reader, heartbeat.task)

    async def _send(self, websocket: WebSocket, subscription: Subscription, heartbeat: SubscriberHeartbeat) -> None:
        write, sent = websocket.scope[INCOMING].write_frame, 0
        subscription.send_at_once = functools.partial(self._frames.write_at_once, write)
        async for frame in subscription:
            if not self._frames.write(write, frame):
                await websocket.send_text(frame)  # waits until there is room
            if sent == 0:
                heartbeat.greeted.set()
            sent += 1
            if sent % BURST == 0:
                await asyncio.sleep(0)

    async def _asked(self, connection: HTTPConnection) -> tuple[str, frozenset[str] | None, str | None]:
        """Return call, types and cursor of the query. Raises Problem, also when no further subscriber is accepted."""
        call, types = _one(connection, "call") or "*", _types(connection.query_params.getlist("types"))
        after = _one(connection, "after")
        if call != "*":
            if not CALL_ID.fullmatch(call):
                raise Problem(400, "call must be a call's id, or *")
            if await self._context.directory.record(call) is None:
                raise Problem(404, "no such call")
        if self._context.events.subscribers >= self._context.settings.events.max_subscribers:
            raise Problem(503, "there are too many event subscriptions", headers={"Retry-After": "5"})
        return call, types, after


class FrameWriter:
    """Writes events to connections (`ConnectionInfo.write_frame`). Each event is sent to all its subscribers in turn,
    so its WebSocket frame is built once and kept for the next subscriber."""

    def __init__(self) -> None:
        self._text, self._frame = "", b""
        self._left = AT_ONCE

    def write(self, write_frame: Callable[[bytes], bool], text: str) -> bool:
        if text is not self._text:
            self._text, self._frame = text, Frame(Opcode.TEXT, text.encode()).serialize(mask=False)
        return write_frame(self._frame)

    def write_at_once(self, write_frame: Callable[[bytes], bool], text: str) -> bool:
        """Write a frame unless `AT_ONCE` frames have been written in this turn of the loop; return whether it was."""
        if not self._left:
            return False
        if self._left == AT_ONCE:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._left -= 1
        return self.write(write_frame, text)

    def _next_turn(self) -> None:
        self._left = AT_ONCE


class SubscriberHeartbeat:
    """Sends heartbeats to a subscriber that has requested them. The first confirms the request, so it is sent at once,
    but after `hello`, which is the first message on every connection."""

    def __init__(self, websocket: WebSocket) -> None:
        self.task: asyncio.Task[None] | None = None
        self._websocket = websocket
        self.greeted = asyncio.Event()

    def on_message(self, text: str) -> None:
        """Handle a message of the client: the first request for heartbeats counts, all other messages are ignored."""
        try:
            every_s = msgspec.json.decode(text, type=HeartbeatRequest).every_s
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._beat(every_s))

    async def _beat(self, every_s: int) -> None:
        await self.greeted.wait()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the subscription's own task handles the end
            while True:
                await self._websocket.send_text(HEARTBEAT)
                await asyncio.sleep(every_s)


async def _messages(subscription: Subscription, heartbeat_s: float) -> AsyncGenerator[bytes, None]:
    """Yield the subscription as server-sent events. An error before the first frame is raised; a later one becomes an
    event `close`."""
    id, retry = "", f"retry: {RETRY_MS}\n"
    try:
        async with aclosing(beating(_frames(subscription), heartbeat_s)) as frames:
            async for frame in frames:
                if frame is None:
                    yield b": nothing has happened\n\n"
                    continue
                # Only durable events advance the cursor; other events leave the client's `Last-Event-ID` as it is.
                cursor = str(subscription.cursor)
                place = f"id: {cursor}\n" if cursor != id else ""
                yield f"{retry}{place}data: {frame}\n\n".encode()
                id, retry = cursor, ""
    except (SubscriptionClosed, StoreError) as error:
        if retry:
            raise
        code, reason = (error.code, error.reason) if isinstance(error, SubscriptionClosed) else (TRY_LATER, str(error))
        yield b"event: close\ndata: " + msgspec.json.encode({"code": code, "reason": reason}) + b"\n\n"


async def _frames(subscription: Subscription) -> AsyncGenerator[str, None]:
    async for frame in subscription:
        yield frame


def _accepts_event_stream(request: Request) -> bool:
    """Return whether the client accepts event streams by name. A client that accepts any type would wait for the end of
    a response that has none."""
    ranges = ",".join(request.headers.getlist("accept")).split(",")
    return any(each.partition(";")[0].strip().lower() == "text/event-stream" for each in ranges)


async def _listen(websocket: WebSocket, subscription: Subscription, heartbeat: SubscriberHeartbeat) -> None:
    clock = asyncio.get_running_loop().time
    until = clock()
    while (message := await websocket.receive())["type"] != "websocket.disconnect":
        heartbeat.on_message(message.get("text") or "")
        until = max(until, clock()) + MESSAGE_S
        if until > clock() + MESSAGE_S * MESSAGE_BURST:
            subscription.end(POLICY, "too many messages from a subscriber")


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    try:
        await websocket.close(code, reason[:120])  # a close frame holds 125 bytes (RFC 6455 section 5.5)
    except (WebSocketDisconnect, RuntimeError):
        pass  # the peer has closed it first


def _one(connection: HTTPConnection, name: str) -> str | None:
    values = connection.query_params.getlist(name)
    if len(values) > 1:
        raise Problem(400, f"{name} appears {len(values)} times")
    return values[0] if values else None


def _types(values: list[str]) -> frozenset[str] | None:
    """Return the event types of `types=a,b`; None, for all types, without the parameter. Raises Problem."""
    if not values:
        return None
    types = frozenset(name.strip() for value in values for name in value.split(","))
    if unknown := types - TYPES:
        raise Problem(400, f"unknown event type: {', '.join(sorted(unknown))}; known: {', '.join(sorted(TYPES))}")
    return types
