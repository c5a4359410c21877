"""A port of media connections: its listening socket, its limits, and the handling of refused connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar, cast

import structlog

from config.process.tasks import end_tasks
from mediaworker.access.connections import ConnectionLimit, refused_places
from mediaworker.access.notices import Notices
from mediaworker.ingress.runner import MediaSocket, OnMessages, Throttle, run_session
from mediaworker.ingress.session import Session

log = structlog.get_logger()

BACKLOG = 1024
REFUSED_WAIT_S = 2.0
"""The time that a refused peer has to begin its request, and to close."""
REFUSED_BYTES = 1 << 16
"""The most bytes that are read from a refused peer."""


class PortConnection(asyncio.Protocol):
    """A connection of a `MediaPort`, with the part of `runner.MediaSocket` that all kinds of connection share."""

    broken = False

    def __init__(self, owner: MediaPort[Any]) -> None:
        self.task: asyncio.Task[None] | None = None
        """The task that runs the session; None before the session, or if the connection has been refused."""
        self.peer = ""
        self._port, self._loop = owner, asyncio.get_running_loop()
        self._lost, self._arrived, self._writable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._on_messages: OnMessages | None = None
        self._is_ahead: Callable[[], bool] = lambda: False
        self._paused = False
        """Whether the transport has been told to read no more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) else ""
        if self._port.enter(self):
            self.begin()

    def begin(self) -> None:
        """Set the connection up, once it has been admitted."""
        raise NotImplementedError

    def pause_writing(self) -> None:
        # What the peer asks for, such as pongs, would pile up: nothing more is read until its answers are taken.
        self._writable.clear()
        self._update_reading()

    def resume_writing(self) -> None:
        self._writable.set()
        self._update_reading()

    def _update_reading(self) -> None:
        """Pause or resume the transport: the one place that decides which it is."""
        raise NotImplementedError

    def _read_on(self, on: bool) -> None:
        if not self.transport.is_closing():
            self._paused = not on
            (self.transport.resume_reading if on else self.transport.pause_reading)()

    async def serve(self, session: Session[Any]) -> None:
        """Run the session, and close the connection when it is over."""
        code, reason = 1000, ""
        try:
            await run_session(session, cast(MediaSocket, self), self._port.throttle)
        except Exception:
            log.exception("media connection failed", call_id=session.call_id)
            code, reason = 1011, "internal error"
        finally:
            await self.close(code, reason)

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; returns when the TCP connection is gone."""
        raise NotImplementedError


ConnectionT = TypeVar("ConnectionT", bound=PortConnection)


class MediaPort(Generic[ConnectionT]):
    """Accepts connections, and refuses those beyond its limits.

    Args:
        host: the address to listen on; empty for every address.
    """

    name: ClassVar[str]
    """The port's name in the log."""
    refused_answer: ClassVar[bytes] = b""
    """The response to a refused peer, which is sent once its request begins."""

    def __init__(self, host: str, port: int, limit: ConnectionLimit, throttle: Throttle) -> None:
        self.host, self.limit, self.throttle = host, limit, throttle
        self.refused_places = refused_places()
        self.notices = Notices()
        self._configured_port = port
        self._connections: set[ConnectionT] = set()
        self._server: asyncio.Server | None = None
        self._stopping = False

    def make_connection(self) -> ConnectionT:
        raise NotImplementedError

    async def start(self) -> None:
        """Listen. Raises OSError if the port is in use."""
        self._server = await asyncio.get_running_loop().create_server(
            self.make_connection, self.host or None, self._configured_port, backlog=BACKLOG, **self._tls()
        )
        event = f"{self.name} listener"
        log.info(event, host=self.host, port=self.port)

    def _tls(self) -> dict[str, Any]:
        return {}

    async def stop(self) -> None:
        """Close the port and every connection (1001); returns when the last session has ended."""
        if self._server is None:
            return
        self._stopping = True
        self._server.close()
        connections = tuple(self._connections)
        await asyncio.gather(*(connection.close(1001, "") for connection in connections))
        await end_tasks(
            *(connection.task for connection in connections)
        )  # a session that is ahead of the VAD would otherwise wait for it
        await self._server.wait_closed()
        self._server = None

    @property
    def port(self) -> int:
        """The bound port; of interest when the configured one is 0."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def admit(self, peer: str) -> str:
        """Counts the connection and returns "", or returns why it is refused."""
        return self.limit.enter(peer)

    def enter(self, connection: ConnectionT) -> bool:
        """Count the connection, and return whether it is admitted. A refused one is handled by `RefusedConnection`."""
        why = "" if self._stopping else self.admit(connection.peer)
        if why:
            now = asyncio.get_running_loop().time()
            self.notices.warn(connection.peer, f"{self.name} connection refused", now, why)
        if why or self._stopping:
            RefusedConnection(connection.transport, connection.peer, self.refused_places, self.refused_answer)
            return False
        self._connections.add(connection)
        return True

    def leave(self, connection: ConnectionT) -> None:
        """Forget a connection that is gone, and whose session has ended."""
        self._connections.discard(connection)


class RefusedConnection(asyncio.Protocol):
    """The protocol of a refused connection: it sends the response, and reads the peer's input until the peer closes.

    The response waits for the request, because many clients expect no data before it. If a connection is closed with
    unread input, the kernel resets it: the client may lose the response, and Asterisk treats a reset as a network error
    instead of a hang-up. If there are too many refused connections already, this one is closed at once.
    """

    def __init__(self, transport: asyncio.Transport, peer: str, places: ConnectionLimit, answer: bytes) -> None:
        self._transport, self._peer, self._places, self._answer = transport, peer, places, answer
        self._unread = REFUSED_BYTES
        self._timer: asyncio.TimerHandle | None = None
        """The timeout; None if the connection was closed at once."""
        transport.set_protocol(self)
        if places.enter(peer):
            transport.write(answer)
            transport.close()
            return
        self._timer = asyncio.get_running_loop().call_later(REFUSED_WAIT_S, transport.abort)
        if not answer:
            self._end()

    def data_received(self, data: bytes) -> None:
        self._unread -= len(data)
        if self._answer:
            self._transport.write(self._answer)
            self._answer = b""
            self._end()
        elif self._unread < 0:
            self._transport.abort()

    def _end(self) -> None:
        (self._transport.write_eof if self._transport.can_write_eof() else self._transport.close)()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._places.leave(self._peer)
