"""The media listener: WebSockets that carry audio, on a port of their own and without a web framework.

Connections that have begun to stream are read once per media tick, all of them together, and their plain frames are cut
out in one go: behind ASGI each message would cost a wake-up, a task switch and several times the work. There is no
compression to undo: µ-law does not compress.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Request, Response
from websockets.protocol import Event, State
from websockets.typing import Subprotocol

from audio import ALL, Shard
from config.listen import LOOPBACK
from config.settings import Media
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.access import is_direct
from mediaworker.ingress.connections import ConnectionLimit
from mediaworker.ingress.frames import split
from mediaworker.ingress.interfaces import MediaEndpoint, SessionFactory, Upgrade
from mediaworker.ingress.notices import Notices
from mediaworker.ingress.runner import PROBLEM, RETRY_AFTER_S, Take, Throttle, drive, refusal_body, refusal_headers
from mediaworker.ops.tls import certificate

log = structlog.get_logger()

CLOSE_TIMEOUT_S = 2.0
BACKLOG = 1024
LEGS = 2
"""Of most connections."""
SWEEP_BYTES = 1 << 16
"""Read, from however many connections, before the event loop has its turn: 200 messages, less than 2 ms of work."""
READ_BYTES = 1 << 14
"""Read from one connection at a time, about a second of one track: so much more than `MAX_AHEAD_S` may come in."""
QUEUED_MESSAGES = 64
"""Per connection, read and not yet taken: 640 ms of a two-track stream; beyond it the socket is not read."""

# The library logs every port scanner's half handshake with a traceback; what matters is logged here.
_quiet = logging.getLogger("mediaworker.ingress.websockets")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


_BODY = refusal_body(503, "too many connections")
_FULL = (
    f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {PROBLEM}\r\nContent-Length: {len(_BODY)}\r\n"
    f"Retry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\r\n"
).encode() + _BODY


class MediaConnection(ServerConnection):
    """A connection that knows what was admitted."""

    endpoint: MediaEndpoint
    opens: SessionFactory

    def __init__(self, listener: MediaListener, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._listener, self._peer = listener, ""
        self._take: Take | None = None
        self._ahead: Callable[[], bool] = lambda: False
        self._framed = False
        """What comes in begins with a frame, and has been cut into frames so far."""
        self._rest = b""

    @property
    def swept(self) -> bool:
        """Read once per media tick, past the event loop's readers."""
        return self in self._listener.sweeping

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        if not self._listener.enters(self._peer):
            stream = cast(asyncio.Transport, transport)
            stream.set_protocol(asyncio.Protocol())  # this one never was a connection
            stream.write(_FULL)
            stream.close()
            return
        super().connection_made(transport)
        self.recv_messages.resume = self._resume_reading

    def data_received(self, data: bytes) -> None:
        if self.protocol.state is State.CONNECTING:
            super().data_received(data)
            self._framed = data.endswith(b"\r\n\r\n")
            return
        if not self._framed:
            super().data_received(data)
            return
        data = self._rest + data
        texts, control, self._rest, self._framed = split(data, self._listener.max_message_bytes)
        if self._take is None or self.protocol.state is not State.OPEN:
            texts, control = [], data[: len(data) - len(self._rest)]
        if texts and self._take is not None and not self._take(texts):
            self.relax()
        if not self._framed:
            control, self._rest, self._take = control + self._rest, b"", None
            self.relax()
        if control:
            super().data_received(control)
            if self.protocol.state is not State.OPEN:
                self.relax()

    def quicken(self, take: Take, ahead: Callable[[], bool]) -> None:
        """Plain text goes straight to `take` from now on, and is read once per media tick unless `ahead`.

        `take` returns False when this is to end. Nothing happens where it is not possible: with TLS, and for clients
        that send other frames.
        """
        if not self._framed or self._take is not None or len(self.recv_messages.frames):
            return
        self._take, self._ahead = take, ahead
        if self.transport.get_extra_info("sslcontext") is None:
            self.transport.pause_reading()
            self._listener.sweeping[self] = self.transport.get_extra_info("socket").fileno()

    def relax(self) -> None:
        """Back to the event loop's readers."""
        if self._listener.sweeping.pop(self, None) is not None:
            self._resume_reading()

    def sweep(self, fd: int, room: bytearray) -> int:
        """Read what has come; gives its size."""
        if self.paused or self._ahead():
            return 0
        try:
            count = os.readv(fd, [room])
        except BlockingIOError:
            return 0
        except OSError:
            count = 0
        if not count:
            self.relax()  # the end of the stream, or a fault, is for the transport to find
            return 0
        self.data_received(bytes(memoryview(room)[:count]))
        return count

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.relax()
        try:
            async with asyncio.timeout(2 * CLOSE_TIMEOUT_S):
                await super().close(code, reason)
        except TimeoutError:  # the library waits first until all that was written has been taken
            self.transport.abort()
            await self.wait_closed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.sweeping.pop(self, None)
        self._listener.left(self._peer, asked=self.request is not None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        # Pongs that nobody reads would pile up: nothing more is read until they are taken.
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._resume_reading()

    def _resume_reading(self) -> None:
        """Unless there is a reason not to."""
        held = self.paused or self.recv_messages.paused or self.swept
        if not held and not self.transport.is_closing():
            self.transport.resume_reading()

    @property
    def _over(self) -> bool:
        """We have closed first, or given up on what comes: no message is taken any more."""
        return self.protocol.close_sent is not None and self.protocol.close_rcvd_then_sent is not True

    def process_event(self, event: Event) -> None:
        if not (self._over and isinstance(event, Frame) and event.opcode in DATA_OPCODES):
            super().process_event(event)

    async def receive(self) -> str | bytes | None:
        if self._over:
            # What is left may begin within a message, and would keep the peer's close from being read.
            self.recv_messages.frames.queue.clear()
            self.recv_messages.maybe_resume()
            await self.close()
            return None
        try:
            return await self.recv(decode=False if self.endpoint.text_as_bytes else None)
        except ConnectionClosed:
            return None


class _Socket:
    """`shell.MediaSocket` over a connection of the library."""

    def __init__(self, connection: MediaConnection) -> None:
        self.receive, self.quicken = connection.receive, connection.quicken
        self._connection = connection

    async def send(self, text: str) -> None:
        try:
            await self._connection.send(text)
        except ConnectionClosed:
            pass  # the next receive says so

    async def close(self, code: int, reason: str) -> None:
        await self._connection.close(code, reason)


class MediaListener:
    """Routes upgrades to endpoints by path. `endpoints` may grow before `start`.

    Raises ConfigError for a certificate that cannot be used.
    """

    def __init__(self, settings: Media, endpoints: Mapping[str, MediaEndpoint], throttle: Throttle) -> None:
        self.rejected: dict[int, int] = {}
        """Upgrades that did not become a session, by HTTP status."""
        self.unfinished = 0
        """Connections that went without a request, or with one that is not HTTP."""
        self._settings, self._endpoints, self._throttle = settings, endpoints, throttle
        self.max_message_bytes = settings.max_message_bytes
        self.sweeping: dict[MediaConnection, int] = {}
        """Connections that are read once per media tick, and their file descriptors."""
        self._room = bytearray(READ_BYTES)
        self.host = settings.host or LOOPBACK
        self.certificate = certificate("media", settings)
        self._server: Server | None = None
        self._notices = Notices()
        self.limit = ConnectionLimit(settings.max_connections, settings.max_per_peer)

    async def start(self) -> None:
        """Raises OSError when the port is taken."""
        settings = self._settings
        self._server = await serve(
            self._serve,
            self.host,
            settings.port,
            process_request=self._admit,
            select_subprotocol=self._subprotocol,
            create_connection=functools.partial(MediaConnection, self),  # type: ignore[arg-type]
            compression=None,
            backlog=BACKLOG,
            max_size=settings.max_message_bytes,
            max_queue=QUEUED_MESSAGES,
            open_timeout=settings.start_timeout_s or None,
            # Media flows all the time, and sessions have deadlines: a ping would tell nothing new.
            ping_interval=None,
            close_timeout=CLOSE_TIMEOUT_S,
            server_header=None,
            logger=_quiet,
            **self._tls(),
        )
        log.info("media listener", host=self.host, port=self.port)

    def _tls(self) -> dict[str, Any]:
        if self.certificate is None:
            return {}
        return {"ssl": self.certificate.context, "ssl_handshake_timeout": self._settings.start_timeout_s or None}

    async def stop(self) -> None:
        """Close the port and every connection (1001); returns when the last handler has ended."""
        if self._server is not None:
            for connection in tuple(self.sweeping):
                connection.relax()
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    def sweep(self, turn: Shard = ALL) -> Iterator[None]:
        """Read what has come since the last time, on the connections whose turn it is. Yields now and then.

        Calls that began one after the other have neighbouring legs: connections take their turns in that order.

        Audio is looked at once per tick; reading each message as it comes would cost a wake-up of the event loop, a
        task switch and a system call for each.
        """
        taken = 0
        for number, (connection, fd) in enumerate(tuple(self.sweeping.items())):
            if connection.swept and turn.has(LEGS * number):
                taken += connection.sweep(fd, self._room)
            if taken >= SWEEP_BYTES:
                taken = 0
                yield

    @property
    def port(self) -> int:
        """The bound port; of interest when the configured one is 0."""
        assert self._server is not None, "not started"
        port: int = next(iter(self._server.sockets)).getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._server.connections) if self._server is not None else 0

    def enters(self, peer: str) -> bool:
        reason = self.limit.enter(peer)
        if reason:
            now = asyncio.get_running_loop().time()
            self._notices.warn(peer, "media connections refused", now, f"limit: {reason}")
        return not reason

    def left(self, peer: str, *, asked: bool) -> None:
        self.unfinished += not asked
        self.limit.leave(peer)

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        assert isinstance(connection, MediaConnection)
        path = urlsplit(request.path).path
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            return self._reject(connection, CallRefused(404, "nothing here"))
        if "upgrade" not in request.headers:
            return self._reject(connection, CallRefused(426, "this is a WebSocket: ask for an upgrade"))
        peer, here = (
            address[:2] if isinstance(address, tuple) else None
            for address in (connection.remote_address, connection.local_address)
        )
        upgrade = Upgrade(
            path=path,
            headers=tuple(request.headers.raw_items()),
            peer=peer[0] if peer else "",
            direct=is_direct("1.1", peer, here),  # the library takes nothing older
        )
        try:
            connection.opens = endpoint.admit(upgrade)
        except CallRefused as refused:
            if refused.delay_s:
                await asyncio.sleep(refused.delay_s)
            return self._reject(connection, refused)
        connection.endpoint = endpoint
        return None

    def _reject(self, connection: ServerConnection, refused: CallRefused) -> Response:
        status = refused.status
        self.rejected[status] = self.rejected.get(status, 0) + 1
        response = connection.respond(status, refusal_body(status, refused.reason).decode())
        del response.headers["Content-Type"]
        for name, value in [("Content-Type", PROBLEM), *refusal_headers(status, refused.challenge)]:
            response.headers[name] = value
        if status == 426:  # RFC 9110 section 15.5.22
            response.headers["Upgrade"] = "websocket"
        return response

    def _subprotocol(self, connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        assert isinstance(connection, MediaConnection)
        spoken = connection.endpoint.subprotocols
        return next((name for name in offered if name in spoken), None)

    async def _serve(self, connection: Any) -> None:
        session = connection.opens(asyncio.get_running_loop().time())
        try:
            await drive(session, _Socket(connection), self._throttle)
        except Exception:
            call = getattr(session, "call", None)
            call_id = call.id if call is not None else None
            log.exception("media connection failed", path=urlsplit(connection.request.path).path, call_id=call_id)
            await connection.close(1011, "internal error")
