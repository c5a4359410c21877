"""The runner of a media session over its connection: messages, outputs, deadlines and back-pressure.

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

from config.process.tasks import end_tasks
from mediaworker.access.local_trust import delay_answer, is_direct_asgi
from mediaworker.access.refusals import PROBLEM, refusal_body, refusal_headers
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.interfaces import MediaEndpoint, Upgrade
from mediaworker.ingress.outbox import CloseConnection
from mediaworker.ingress.session import Session

log = structlog.get_logger()

T = TypeVar("T")
WAITING_BYTES, WAITING_BYTES_OF_ALL, WAITING_BYTES_ALWAYS = 1 << 26, 1 << 28, 1 << 18
"""The limits on bytes that were read and wait for their session: of one connection, of all together, and what each
connection may always hold. Beyond them the socket is not read. The first is half an hour of audio at 16 kHz. It is that
large because a client that sends a file at once sends its pings after the audio, and gives up when they are not
answered within twenty seconds."""
MESSAGE_BYTES = 128
"""The memory of a message in addition to its payload."""

STILL_BEATS = 3
"""The number of heartbeats without any progress in either direction after which the peer counts as gone."""


OnMessages = Callable[[Sequence[bytes]], bool]
"""Processes messages; returns False when the session must receive single messages again."""


class MediaSocket(Protocol):
    broken: bool
    """Whether the connection was lost by an error, and not closed by the peer."""

    async def receive(self) -> str | bytes | None:
        """The next message, or None once the connection is gone. Cancelling this loses no message."""

    def enable_batch_reads(self, on_messages: OnMessages, is_ahead: Callable[[], bool]) -> None:
        """Pass messages directly to `on_messages` from now on, if this socket can; see `connection.MediaConnection`."""

    async def send(self, output: str | bytes) -> None: ...

    async def close(self, code: int, reason: str) -> None: ...


class Throttle:
    """Holds back sessions whose client is ahead of the VAD. The owner of the VAD calls `release` after every step."""

    def __init__(self) -> None:
        self.held = 0
        """The number of sessions that are held back now."""
        self.holds = 0
        """The number of times that a session was held back."""
        self.waiting_bytes = 0
        """The size of all messages of all connections that wait for their sessions."""
        self._stepped: asyncio.Future[None] | None = None

    def is_full(self, waiting: int) -> bool:
        """Whether a connection with this many waiting bytes must not be read now."""
        return waiting > WAITING_BYTES or (waiting > WAITING_BYTES_ALWAYS and self.waiting_bytes > WAITING_BYTES_OF_ALL)

    def release(self) -> None:
        if self._stepped is not None:
            self._stepped.set_result(None)
            self._stepped = None

    async def wait(self, session: Session[Any]) -> None:
        """Wait until the session is no longer ahead."""
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
    """Run a session until its connection is gone. `session.connection_lost` is called in any case."""
    await _SessionRun(session, socket, throttle).run()


class PeerHeartbeat:
    """Calls `beat`, which sends a ping, every `period_s` from `start` to `stop`, and judges whether the peer is gone.

    Proxies close an idle connection (nginx after a minute), so pings are sent even during silence. A peer that has
    vanished sends no close, so it is detected by the lack of progress in both directions.
    """

    def __init__(self, period_s: float, beat: Callable[[], None]) -> None:
        self.alive = False
        """Whether anything has arrived since the last heartbeat, a pong or other data."""
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
        """Judge whether the peer is gone; to be called once per heartbeat.

        Args:
            unread: the bytes that the peer has not read yet; a smaller number than before is progress.
            held_back: the peer is not being read, because it is ahead. Its pongs are queued after its audio, so it
                cannot be judged.
        """
        moved = self.alive or held_back or unread < self._unread
        self._still = 0 if moved else self._still + 1
        self.alive, self._unread = False, unread
        return self._still >= STILL_BEATS

    def _next(self) -> None:
        self.start()
        self._beat()


class Backlog(Generic[T]):
    """The messages of one connection that wait for its session. They count towards the limit over all connections."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._messages: deque[tuple[T, int]] = deque()
        """(message, its bytes)."""
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def append(self, message: T, size: int) -> None:
        """Add a message with a payload of `size` bytes."""
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
        """Whether reading must pause, either now or until there are `room` bytes of room."""
        return self._throttle.is_full(self._bytes + room)

    def _count(self, more: int) -> None:
        self._bytes += more
        self._throttle.waiting_bytes += more


class _SessionRun:
    """One run of a session: it receives and sends concurrently, and calls the session at its deadline."""

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
                    self._throttle.release()  # wake a held-back session that has ended: no VAD step may follow
                    await self._socket.close(output.code, output.reason)
                    return
                await self._socket.send(output)
        except Exception:
            log.exception("what a session says cannot be sent")
            await self._socket.close(1011, "internal error")

    def _on_ready(self) -> None:
        self._ready.set()
        self._set_timer()  # with its last output a session sets an earlier deadline

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
    """A WebSocket of the HTTP port. `read` must run all the time, so that the framework gets to pings after audio."""

    broken = False

    def __init__(self, websocket: WebSocket, max_bytes: int, throttle: Throttle) -> None:
        self._websocket, self._max_bytes = websocket, max_bytes
        self._messages = Backlog[str | bytes](throttle)
        self._over = False
        self._changed = asyncio.Event()

    async def read(self) -> None:
        """Read messages until the connection has ended."""
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
        """Drop the waiting messages."""
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
