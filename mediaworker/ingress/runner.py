"""Carries a media session over a WebSocket: messages in, outputs out, deadlines, and back-pressure.

`run_session` is the only loop; the media listener and the HTTP port differ in the socket they give it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
import structlog
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.access import delay_answer, is_direct_asgi
from mediaworker.ingress.interfaces import CloseConnection, MediaEndpoint, MediaSession, Output, Talking, Upgrade
from mediaworker.ingress.outbox import Outbox

log = structlog.get_logger()

PROBLEM = "application/problem+json"
RETRY_AFTER_S = 5
SLOW = 4008
"""Close code for who does not read, as on `/v1/events`; 4000 to 4999 are private (RFC 6455 section 7.4.2)."""


def refusal_body(status: int, detail: str) -> bytes:
    """RFC 9457: what a refused upgrade is told."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return msgspec.json.encode(body)


def refusal_headers(status: int, challenge: str = "") -> list[tuple[str, str]]:
    headers = [("Retry-After", str(RETRY_AFTER_S))] if status in (429, 503) else []
    return headers + ([("WWW-Authenticate", challenge)] if challenge else [])


OnMessages = Callable[[Sequence[bytes]], bool]
"""Called with messages; returns False when the session wants to be asked for each again."""


class MediaSocket(Protocol):
    async def receive(self) -> str | bytes | None:
        """The next message, or None when the connection is gone. Cancelling it loses nothing."""

    def enable_batch_reads(self, on_messages: OnMessages, is_ahead: Callable[[], bool]) -> None:
        """Give messages straight to `on_messages` from now on, if this socket can; see `connection.MediaConnection`."""

    async def send(self, text: str) -> None: ...

    async def close(self, code: int, reason: str) -> None: ...


class Throttle:
    """Holds sessions whose client runs ahead. The owner of the VAD calls `release` after every step."""

    def __init__(self) -> None:
        self.held = 0
        """Sessions held back at this moment."""
        self.holds = 0
        """How often a session was held back."""
        self._stepped: asyncio.Future[None] | None = None

    def release(self) -> None:
        if self._stepped is not None:
            self._stepped.set_result(None)
            self._stepped = None

    async def wait(self, session: MediaSession) -> None:
        """Returns once the session is no longer ahead."""
        self.held += 1
        self.holds += 1
        try:
            while session.is_ahead():
                if self._stepped is None:
                    self._stepped = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._stepped)
        finally:
            self.held -= 1


async def run_session(session: MediaSession, socket: MediaSocket, throttle: Throttle) -> None:
    """Run a session until its connection is gone. Whatever happens, the session hears `connection_lost`."""
    loop = asyncio.get_running_loop()
    closing: set[asyncio.Task[Any]] = set()
    timer: asyncio.Timeout | None = None

    def hasten() -> None:
        """Hold the session to a deadline that has come nearer, as after `stop`."""
        deadline = session.deadline
        if timer is None or deadline is None or timer.expired():
            return
        if (when := timer.when()) is None or deadline < when:
            timer.reschedule(deadline)

    def apart(work: Coroutine[Any, Any, Any]) -> None:
        task = loop.create_task(work)
        closing.add(task)
        task.add_done_callback(closing.discard)

    def hang_up() -> None:
        apart(socket.close(1000, "call ended by the worker"))

    def on_messages(messages: Sequence[bytes]) -> bool:
        now = loop.time()
        for message in messages:
            if outputs := session.receive(message, now):
                apart(_perform(outputs, socket))
        hasten()
        return session.streaming

    def cut() -> None:
        throttle.release()
        apart(socket.close(SLOW, "what waits is not read"))

    session.on_hangup(hang_up)
    speaking = None
    if isinstance(session, Talking):
        speaking = loop.create_task(_speak(session.outbox, socket, throttle, cut, hasten))
    try:
        while True:
            # The deadline moves away with every message: the timer stays as it is then, and is set again when it ends.
            timeout = asyncio.timeout_at(session.deadline)
            try:
                async with timeout:
                    timer = timeout
                    await _pump(session, socket, throttle, loop.time, on_messages, hasten)
                    return
            except TimeoutError:
                if not timeout.expired():
                    raise
            finally:
                timer = None
            if await _perform(session.expire(loop.time()), socket):
                return
    finally:
        session.connection_lost(loop.time())
        if speaking is not None:
            speaking.cancel()
            await asyncio.wait({speaking})
        if closing:
            await asyncio.wait(closing)


async def _pump(
    session: MediaSession,
    socket: MediaSocket,
    throttle: Throttle,
    clock: Callable[[], float],
    on_messages: OnMessages,
    hasten: Callable[[], None],
) -> None:
    while True:
        if session.is_ahead():
            await throttle.wait(session)
        if session.streaming:
            socket.enable_batch_reads(on_messages, session.is_ahead)
        if (message := await socket.receive()) is None:
            return
        outputs = session.receive(message, clock())
        hasten()
        if outputs and await _perform(outputs, socket):
            return


async def _speak(
    outbox: Outbox, socket: MediaSocket, throttle: Throttle, cut: Callable[[], None], hasten: Callable[[], None]
) -> None:
    """Send what the session says unasked, as fast as the peer takes it."""
    ready = asyncio.Event()

    def wake() -> None:
        ready.set()
        hasten()  # its last word leaves it little time

    outbox.listen(wake, cut)
    try:
        while True:
            while (output := outbox.next()) is None:
                ready.clear()
                await ready.wait()
            if isinstance(output, CloseConnection):
                throttle.release()  # a session that is held back is over all the same, and no step may come any more
            if await _perform((output,), socket):
                return
    except Exception:
        log.exception("what a session says cannot be sent")
        await socket.close(1011, "internal error")


async def _perform(outputs: Sequence[Output], socket: MediaSocket) -> bool:
    """Whether the socket has been closed."""
    for output in outputs:
        if isinstance(output, CloseConnection):
            await socket.close(output.code, output.reason)
            return True
        await socket.send(output.text)
    return False


class _StarletteSocket:
    def __init__(self, websocket: WebSocket, max_bytes: int) -> None:
        self._websocket, self._max_bytes = websocket, max_bytes

    async def receive(self) -> str | bytes | None:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        data: str | bytes | None = message.get("text")
        if data is None:
            data = message.get("bytes") or b""
        if len(data) > self._max_bytes:
            await self.close(1009, "message too big")
            return None
        return data

    def enable_batch_reads(self, on_messages: OnMessages, is_ahead: Callable[[], bool]) -> None:
        """The framework has taken each message apart already."""

    async def send(self, text: str) -> None:
        try:
            await self._websocket.send_text(text)
        except (RuntimeError, WebSocketDisconnect):
            pass  # the next receive says so

    async def close(self, code: int, reason: str) -> None:
        try:
            await self._websocket.close(code, reason)
        except (RuntimeError, WebSocketDisconnect):
            pass  # closed already, by either side


def websocket_routes(endpoints: Mapping[str, MediaEndpoint], throttle: Throttle, *, max_bytes: int) -> list[BaseRoute]:
    """Endpoints by path, for the HTTP port. `max_bytes` bounds a message (`media.max_message_bytes`)."""

    def route(path: str, endpoint: MediaEndpoint) -> WebSocketRoute:
        async def serve(websocket: WebSocket) -> None:
            await _serve_starlette(websocket, endpoint, throttle, max_bytes)

        return WebSocketRoute(path, serve)

    return [route(path, endpoint) for path, endpoint in endpoints.items()]


async def _serve_starlette(websocket: WebSocket, endpoint: MediaEndpoint, throttle: Throttle, max_bytes: int) -> None:
    """Serve an endpoint on the HTTP port: the same session, for users whose tunnel leads to one port only."""
    upgrade = Upgrade(
        path=websocket.url.path,
        headers=tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in websocket.headers.raw),
        peer=websocket.client.host if websocket.client else "",
        direct=is_direct_asgi(websocket.scope),
    )
    try:
        opens = endpoint.admit(upgrade)
    except CallRefused as refused:
        headers = dict(refusal_headers(refused.status, refused.challenge))
        body = refusal_body(refused.status, refused.reason)
        delay_answer(websocket.scope, refused.delay_s)
        await websocket.send_denial_response(Response(body, refused.status, headers, PROBLEM))
        return
    offered = websocket.scope.get("subprotocols", ())
    await websocket.accept(next((name for name in offered if name in endpoint.subprotocols), None))
    now = asyncio.get_running_loop().time()
    await run_session(opens(now), _StarletteSocket(websocket, max_bytes), throttle)
