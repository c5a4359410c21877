"""The media listener: WebSockets that carry audio, on a port of their own and without a web framework.

Streaming connections are read together once per media tick, and their plain frames are cut at once: behind ASGI each
message would cost a wake-up, a task switch and several times the work. Compression is not negotiated, because µ-law
does not compress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import structlog
from websockets.protocol import State

from audio import ALL, Shard
from config.listen import LOOPBACK
from config.settings import Media
from mediaworker.access.connections import ConnectionLimit, refused_places
from mediaworker.access.notices import Notices
from mediaworker.access.refusals import PROBLEM, RETRY_AFTER_S, refusal_body
from mediaworker.access.tls import certificate
from mediaworker.ingress.connection import CLOSE_TIMEOUT_S, MediaConnection
from mediaworker.ingress.interfaces import MediaEndpoint
from mediaworker.ingress.runner import Throttle

log = structlog.get_logger()

BACKLOG = 1024
LEGS = 2
"""The number of legs that most connections carry."""
SWEEP_BYTES = 1 << 16
"""How much is read before the event loop runs again: 200 messages, less than 2 ms of work."""
READ_BYTES = 1 << 14
"""How much is read from one connection at a time: about a second of one track, which may exceed `MAX_AHEAD_S`."""

REFUSED_WAIT_S = 2.0
"""How long a peer beyond the limit may take to begin its request."""

_BODY = refusal_body(503, "too many connections")
_FULL = (
    f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {PROBLEM}\r\nContent-Length: {len(_BODY)}\r\n"
    f"Retry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\r\n"
).encode() + _BODY


class MediaListener:
    """Routes upgrades to endpoints by path. Implements `connection.ConnectionOwner`.

    Every `heartbeat_s` a connection is pinged. Raises ConfigError for a certificate that cannot be used.
    """

    def __init__(
        self, settings: Media, endpoints: Mapping[str, MediaEndpoint], throttle: Throttle, *, heartbeat_s: float = 20.0
    ) -> None:
        self.rejected: dict[int, int] = {}
        """Upgrades that did not become a session, by HTTP status."""
        self.unfinished = 0
        """Connections that closed without a valid HTTP request."""
        self.batched: dict[MediaConnection, int] = {}
        self.throttle, self.max_message_bytes = throttle, settings.max_message_bytes
        self.handshake_timeout_s, self.heartbeat_s = settings.start_timeout_s or None, heartbeat_s
        self.host = settings.host or LOOPBACK
        self.certificate = certificate("media", settings)
        self.limit = ConnectionLimit(settings.max_connections, settings.max_connections // 2)
        self.refused_places = refused_places()
        self._settings, self._endpoints = settings, endpoints
        self._connections: set[MediaConnection] = set()
        self._room = bytearray(READ_BYTES)
        self._server: asyncio.Server | None = None
        self._stopping = False
        self._notices = Notices()

    async def start(self) -> None:
        """Raises OSError when the port is taken."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: MediaConnection(self), self.host, self._settings.port, backlog=BACKLOG, **self._tls()
        )
        log.info("media listener", host=self.host, port=self.port)

    def _tls(self) -> dict[str, Any]:
        if self.certificate is None:
            return {}
        return {
            "ssl": self.certificate.context,
            "ssl_handshake_timeout": self.handshake_timeout_s,
            "ssl_shutdown_timeout": CLOSE_TIMEOUT_S,
        }

    async def stop(self) -> None:
        """Close the port and every connection (1001); returns when the last session has ended."""
        if self._server is None:
            return
        self._stopping = True
        self._server.close()
        connections = tuple(self._connections)
        tasks = [connection.task for connection in connections if connection.task is not None]
        await asyncio.gather(*(connection.close(1001) for connection in connections), *tasks)
        await self._server.wait_closed()
        self._server = None

    def sweep(self, shard: Shard = ALL) -> Iterator[None]:
        """Read the connections of this shard. Yields so that the event loop can run.

        Calls that began one after the other have neighbouring legs, so connections are sharded in that order.
        """
        taken = 0
        for number, (connection, fd) in enumerate(tuple(self.batched.items())):
            if connection in self.batched and shard.has(LEGS * number):
                taken += connection.read_batch(fd, self._room)
            if taken >= SWEEP_BYTES:
                taken = 0
                yield

    @property
    def port(self) -> int:
        """The bound port; of interest when the configured one is 0."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """Connections whose upgrade was accepted and whose close has not begun."""
        return sum(connection.websocket.state is State.OPEN for connection in self._connections)

    # -- ConnectionOwner ----------------------------------------------------------------------------------------------

    def enter(self, connection: MediaConnection, peer: str) -> bool:
        reason = "" if self._stopping else self.limit.enter(peer)
        if reason:
            now = asyncio.get_running_loop().time()
            self._notices.warn(peer, "media connections refused", now, f"limit: {reason}")
        if self._stopping or reason:
            RefusedConnection(connection.transport, peer, self.refused_places)
            return False
        self._connections.add(connection)
        return True

    def leave(self, connection: MediaConnection, peer: str, *, asked: bool) -> None:
        if connection.task is None:
            self._connections.discard(connection)
        else:  # its session may not have ended yet
            connection.task.add_done_callback(lambda _: self._connections.discard(connection))
        self.unfinished += not asked
        self.limit.leave(peer)

    def endpoint(self, path: str) -> MediaEndpoint | None:
        return self._endpoints.get(path)

    def count_rejected(self, status: int) -> None:
        self.rejected[status] = self.rejected.get(status, 0) + 1


class RefusedConnection(asyncio.Protocol):
    """A connection beyond the limit. It is answered when its request comes, because many clients expect nothing before,
    and closed. It takes over the transport, and answers at once when no place is left.
    """

    def __init__(self, transport: asyncio.Transport, peer: str, places: ConnectionLimit) -> None:
        self._transport, self._peer, self._places = transport, peer, places
        self._timer: asyncio.TimerHandle | None = None
        """None: it holds no place."""
        transport.set_protocol(self)
        if places.enter(peer):
            self.data_received(b"")
        else:
            self._timer = asyncio.get_running_loop().call_later(REFUSED_WAIT_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(_FULL)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._places.leave(self._peer)
