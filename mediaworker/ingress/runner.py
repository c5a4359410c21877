"""Runs a media session over its connection: messages, outputs, deadlines and back-pressure.

`run_session` is the only loop; the media, the HTTP and the AudioSocket port differ in the socket they give it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import structlog
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from config.tasks import end_tasks
from mediaworker.access.local_trust import delay_answer, is_direct_asgi
from mediaworker.access.refusals import PROBLEM, refusal_body, refusal_headers
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.interfaces import MediaEndpoint, Upgrade
from mediaworker.ingress.outbox import CloseConnection
from mediaworker.ingress.session import Session

log = structlog.get_logger()

T = TypeVar("T")
WAITING_BYTES, WAITING_BYTES_OF_ALL, WAITING_BYTES_ALWAYS = 1 << 26, 1 << 28, 1 << 18
"""Messages that were read and wait for their session: so much of one connection, and so much of all together, but for
what each may always have. Beyond it the socket is not read. It is half an hour of audio at 16 kHz: a client that sends
a file at once closes when its pings, which come behind, are not answered within twenty seconds."""
MESSAGE_BYTES = 128
"""What a message takes besides its payload."""

STILL_BEATS = 3
"""So many heartbeats on which nothing had moved in either direction, and the peer is gone."""


OnMessages = Callable[[Sequence[bytes]], bool]
"""Takes messages; returns False when the session takes single messages again."""


class MediaSocket(Protocol):
    broken: bool
    """The connection was lost by a fault, and not because the peer closed it."""

    async def receive(self) -> str | bytes | None:
        """The next message, or None once the connection is gone. Cancelling it loses no message."""

    def enable_batch_reads(self, on_messages: OnMessages, is_ahead: Callable[[], bool]) -> None:
        """Pass messages directly to `on_messages` from now on, if this socket can; see `connection.MediaConnection`."""

    async def send(self, output: str | bytes) -> None: ...

    async def close(self, code: int, reason: str) -> None: ...


class Throttle:
    """Holds back sessions whose client is ahead of the VAD, whose owner calls `release` after every step."""

    def __init__(self) -> None:
        self.held = 0
        """How many sessions are held back now."""
        self.holds = 0
        """How often a session was held back."""
        self.waiting_bytes = 0
        """Of the messages of all connections that wait for their sessions."""
        self._stepped: asyncio.Future[None] | None = None

    def is_full(self, waiting: int) -> bool:
        """Whether a connection of which so many bytes wait is not read now."""
        return waiting > WAITING_BYTES or (waiting > WAITING_BYTES_ALWAYS and self.waiting_bytes > WAITING_BYTES_OF_ALL)

    def release(self) -> None:
        if self._stepped is not None:
            self._stepped.set_result(None)
            self._stepped = None

    async def wait(self, session: Session[Any]) -> None:
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


async def run_session(session: Session[Any], socket: MediaSocket, throttle: Throttle) -> None:
    """Run a session until its connection is gone. Whatever happens, `session.connection_lost` is called."""
    await _SessionRun(session, socket, throttle).run()


class PeerHeartbeat:
    """Calls `beat`, which sends a ping, every `period_s` from `start` to `stop`, and judges whether the peer is gone.

    Proxies cut a connection that is silent (nginx after a minute), so pings go out even when nobody speaks. A peer that
    has vanished closes nothing: it is found by what no longer moves.
    """

    def __init__(self, period_s: float, beat: Callable[[], None]) -> None:
        self.heard = False
        """Something has come since the last heartbeat: a pong or anything else."""
        self._period_s, self._beat = period_s, beat
        self._still = self._unread = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._next)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_peer_gone(self, unread: int, *, held_back: bool) -> bool:
        """To be asked once a heartbeat. `unread`: bytes that wait for the peer to take them; fewer is a movement.

        `held_back`: the peer is not read, because it is ahead. Its pongs wait behind its audio, so it is not judged.
        """
        moved = self.heard or held_back or unread < self._unread
        self._still = 0 if moved else self._still + 1
        self.heard, self._unread = False, unread
        return self._still >= STILL_BEATS

    def _next(self) -> None:
        self.start()
        self._beat()


class Backlog(Generic[T]):
    """Messages of one connection that were read and wait for its session, counted with those of all others."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._messages: deque[tuple[T, int]] = deque()
        """Each with its bytes."""
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def append(self, message: T, size: int) -> None:
        """`size`: bytes of its payload."""
        self._messages.append((message, size + MESSAGE_BYTES))
        self._count(size + MESSAGE_BYTES)

    def popleft(self) -> T:
        message, size = self._messages.popleft()
        self._count(-size)
        return message

    def clear(self) -> None:
        self._messages.clear()
        self._count(-self._bytes)

    def full(self, room: int = 0) -> bool:
        """Whether no more is to be read now, or not before there is so much room."""
        return self._throttle.is_full(self._bytes + room)

    def _count(self, more: int) -> None:
        self._bytes += more
        self._throttle.waiting_bytes += more


class _SessionRun:
    """Receives and sends concurrently, and calls the session at its deadline."""

    def __init__(self, session: Session[Any], socket: MediaSocket, throttle: Throttle) -> None:
        self._session, self._socket, self._throttle = session, socket, throttle
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf
        """When the timer fires."""
        self._aborting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._session.outbox.listen(self._on_ready, self._on_abort)
        sending = self._loop.create_task(self._send())
        broken = True
        try:
            self._set_timer()
            await self._receive()
            broken = self._socket.broken
        finally:
            self._session.connection_lost(self._loop.time(), broken=broken)
            if self._timer is not None:
                self._timer.cancel()
            sending.cancel()
            await asyncio.wait({sending} if self._aborting is None else {sending, self._aborting})

    async def _receive(self) -> None:
        session, socket = self._session, self._socket
        while True:
            while session.is_ahead():
                await self._throttle.wait(session)
                session.resume(self._loop.time())
            if session.streaming:
                socket.enable_batch_reads(self._on_messages, session.is_ahead)
            if (message := await socket.receive()) is None:
                return
            session.receive(message, self._loop.time())
            self._set_timer()

    def _on_messages(self, messages: Sequence[bytes]) -> bool:
        now = self._loop.time()
        for message in messages:
            self._session.receive(message, now)
        self._set_timer()
        return self._session.streaming

    async def _send(self) -> None:
        try:
            while True:
                while (output := self._session.outbox.next()) is None:
                    self._ready.clear()
                    await self._ready.wait()
                if isinstance(output, CloseConnection):
                    self._throttle.release()  # a held-back session has ended, and no step of the VAD may follow
                    await self._socket.close(output.code, output.reason)
                    return
                await self._socket.send(output)
        except Exception:
            log.exception("what a session says cannot be sent")
            await self._socket.close(1011, "internal error")

    def _on_ready(self) -> None:
        self._ready.set()
        self._set_timer()  # a session's last output brings its deadline nearer

    def _on_abort(self, close: CloseConnection) -> None:
        self._throttle.release()
        if self._aborting is None:
            self._aborting = self._loop.create_task(self._socket.close(close.code, close.reason))

    def _set_timer(self) -> None:
        """Set the timer to the session's deadline. If the deadline moves later, the timer finds out when it fires."""
        deadline = self._session.deadline
        if deadline is None or deadline >= self._due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s, self._timer = deadline, self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._due_s, self._timer = math.inf, None
        try:
            self._session.expire(self._loop.time())
        except Exception:
            log.exception("media connection failed", call_id=self._session.call_id)
            self._on_abort(CloseConnection(1011, "internal error"))
        else:
            self._set_timer()


class _StarletteSocket:
    """What comes is read by `read`, which has to run, so that the framework sees the pings behind it."""

    broken = False

    def __init__(self, websocket: WebSocket, max_bytes: int, throttle: Throttle) -> None:
        self._websocket, self._max_bytes = websocket, max_bytes
        self._messages = Backlog[str | bytes](throttle)
        self._over = False
        self._changed = asyncio.Event()

    async def read(self) -> None:
        """Until the connection is over."""
        try:
            while not self._over and (message := await self._websocket.receive())["type"] != "websocket.disconnect":
                data: str | bytes | None = message.get("text")
                if data is None:
                    data = message.get("bytes") or b""
                if len(data) > self._max_bytes:
                    await self.close(1009, "message too big")
                elif not self._over:
                    self._messages.append(data, len(data))
                    self._changed.set()
                while self._messages.full():
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._over = True
            self._changed.set()

    def forget(self) -> None:
        """Nobody takes what waits."""
        self._messages.clear()
        self._changed.set()

    async def receive(self) -> str | bytes | None:
        while not self._messages and not self._over:
            self._changed.clear()
            await self._changed.wait()
        if not self._messages:
            return None
        data = self._messages.popleft()
        self._changed.set()
        return data

    def enable_batch_reads(self, on_messages: OnMessages, is_ahead: Callable[[], bool]) -> None:
        """Does nothing: the framework has parsed each message already."""

    async def send(self, output: str | bytes) -> None:
        try:
            if isinstance(output, str):
                await self._websocket.send_text(output)
            else:
                await self._websocket.send_bytes(output)
        except (RuntimeError, WebSocketDisconnect):
            pass  # the next receive returns None

    async def close(self, code: int, reason: str) -> None:
        self._over = True
        self.forget()
        try:
            await self._websocket.close(code, reason)
        except (RuntimeError, WebSocketDisconnect):
            pass  # closed already, by either side


def websocket_routes(endpoints: Mapping[str, MediaEndpoint], throttle: Throttle, *, max_bytes: int) -> list[BaseRoute]:
    """Endpoints by path, for the HTTP port. `max_bytes` bounds a message (`media.max_message_bytes`)."""
    return [
        WebSocketRoute(path, partial(_serve_starlette, endpoint=endpoint, throttle=throttle, max_bytes=max_bytes))
        for path, endpoint in endpoints.items()
    ]


async def _serve_starlette(websocket: WebSocket, endpoint: MediaEndpoint, throttle: Throttle, max_bytes: int) -> None:
    """Serve an endpoint on the HTTP port, for users whose tunnel leads to one port only."""
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
    socket = _StarletteSocket(websocket, max_bytes, throttle)
    reading = asyncio.create_task(socket.read())
    try:
        await run_session(opens(now), socket, throttle)
    finally:
        socket.forget()
        await end_tasks(reading)
