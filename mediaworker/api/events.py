"""`WS /v1/events`: a subscription to the hub, on a WebSocket."""

from __future__ import annotations

import asyncio
import re

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from mediaworker.api.context import ApiContext
from mediaworker.api.problem import Problem
from mediaworker.events.schema import TYPES
from mediaworker.events.store import StoreError
from mediaworker.events.subscription import Subscription, SubscriptionClosed

CALL_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")
BURST = 32
"""Frames sent in one turn of the loop: a send to a socket that takes it does not suspend."""
TRY_LATER = 1013
POLICY = 1008
SAID_S, SAID_BURST = 0.1, 100
"""A message every so often may be some client's idea of staying alive; a flood of them is not."""


def routes(context: ApiContext) -> list[WebSocketRoute]:
    return [WebSocketRoute("/v1/events", Events(context).serve)]


class Events:
    """The endpoint. What is wrong with the request is answered before the upgrade, a bad cursor after it (4009)."""

    def __init__(self, context: ApiContext) -> None:
        self._context, self._hub = context, context.hub

    async def serve(self, websocket: WebSocket) -> None:
        access = self._context.authorize(websocket, "events")
        call, types = _one(websocket, "call") or "*", _types(websocket.query_params.getlist("types"))
        after = _one(websocket, "after")
        await self._check_call(call)
        if self._hub.subscribers >= self._context.settings.events.max_subscribers:
            raise Problem(503, "all event subscriptions are taken", headers={"Retry-After": "5"})
        await websocket.accept(access.subprotocol)
        try:
            subscription = self._hub.subscribe(call=call, after=after, types=types)
        except SubscriptionClosed as closed:
            await _close(websocket, closed.code, closed.reason)
            return
        # What a subscriber says is not listened to, but its leaving must be heard.
        reader = asyncio.get_running_loop().create_task(_discard(websocket, subscription))
        reader.add_done_callback(lambda _: subscription.close())
        try:
            await _send(websocket, subscription)
        except SubscriptionClosed as closed:
            await _close(websocket, closed.code, closed.reason)
        except StoreError:
            await _close(websocket, TRY_LATER, "the event store cannot be read")
        except WebSocketDisconnect:
            pass
        finally:
            subscription.close()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _check_call(self, call: str) -> None:
        if call == "*":
            return
        if not CALL_ID.fullmatch(call):
            raise Problem(400, "call must be a call's id, or *")
        try:
            known = self._hub.call(call) or await self._hub.read(lambda database: database.call(call))
        except StoreError as error:
            raise Problem(503, f"the event store: {error}") from None
        if known is None:
            raise Problem(404, "no such call")


async def _send(websocket: WebSocket, subscription: Subscription) -> None:
    sent = 0
    async for frame in subscription:
        await websocket.send_text(frame)
        sent += 1
        if sent % BURST == 0:
            await asyncio.sleep(0)


async def _discard(websocket: WebSocket, subscription: Subscription) -> None:
    clock = asyncio.get_running_loop().time
    until = clock()
    while (await websocket.receive())["type"] != "websocket.disconnect":
        until = max(until, clock()) + SAID_S
        if until > clock() + SAID_S * SAID_BURST:
            subscription.end(POLICY, "subscribers have nothing to say")


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    try:
        await websocket.close(code, reason[:120])  # a close frame holds 125 bytes (RFC 6455 section 5.5)
    except (WebSocketDisconnect, RuntimeError):
        pass  # the peer was faster


def _one(websocket: WebSocket, name: str) -> str | None:
    values = websocket.query_params.getlist(name)
    if len(values) > 1:
        raise Problem(400, f"{name} is there {len(values)} times")
    return values[0] if values else None


def _types(values: list[str]) -> frozenset[str] | None:
    """`types=a,b`, or none for all. Raises Problem."""
    if not values:
        return None
    types = frozenset(name.strip() for value in values for name in value.split(","))
    if unknown := types - TYPES:
        raise Problem(400, f"unknown event type: {', '.join(sorted(unknown))}; known: {', '.join(sorted(TYPES))}")
    return types
