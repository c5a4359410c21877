"""The media listener: WebSockets that carry audio, on a separate port and without a web framework.

Streaming connections are read together once per media tick, and their plain frames are cut at once: behind ASGI each
message would cost a wake-up, a task switch and several times the work. Compression is not negotiated, because µ-law
does not compress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from websockets.protocol import State

from audio import ALL, Shard
from config.listen import LOOPBACK
from config.metrics.registry import MetricsRegistry
from config.settings import Media
from mediaworker.access.connections import ConnectionLimit
from mediaworker.access.refusals import PROBLEM, RETRY_AFTER_S, refusal_body
from mediaworker.access.tls import certificate
from mediaworker.ingress.connection import CLOSE_TIMEOUT_S, MediaConnection
from mediaworker.ingress.interfaces import MediaEndpoint
from mediaworker.ingress.port import MediaPort
from mediaworker.ingress.runner import Throttle

LEGS = 2
"""The number of legs that most connections carry."""
SWEEP_BYTES = 1 << 16
"""The number of bytes read before the event loop runs again: 200 messages, less than 2 ms of work."""
READ_BYTES = 1 << 14
"""The bytes read from one connection at a time: about a second of one track, which may exceed `MAX_AHEAD_S`."""

_BODY = refusal_body(503, "too many connections")
_FULL = (
    f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {PROBLEM}\r\nContent-Length: {len(_BODY)}\r\n"
    f"Retry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\r\n"
).encode() + _BODY


class MediaListener(MediaPort[MediaConnection]):
    """Routes upgrades to endpoints by path.

    Every `heartbeat_s` a connection is pinged. Raises ConfigError for a certificate that cannot be used.
    """

    name = "media"
    refused_answer = _FULL

    def __init__(
        self, settings: Media, endpoints: Mapping[str, MediaEndpoint], throttle: Throttle, *, heartbeat_s: float = 20.0
    ) -> None:
        limit = ConnectionLimit(settings.max_connections, settings.max_connections // 2)
        super().__init__(settings.host or LOOPBACK, settings.port, limit, throttle)
        self.rejected: Counter[int] = Counter()
        """The number of upgrades that did not become a session, by HTTP status."""
        self.unfinished = 0
        """The number of connections that closed without a valid HTTP request."""
        self.batched: dict[MediaConnection, int] = {}
        self.certificate = certificate("media", settings)
        self._settings, self._endpoints, self._heartbeat_s = settings, endpoints, heartbeat_s
        self._room = bytearray(READ_BYTES)

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.gauge("media_connections", "Shows how many media WebSockets are open.", lambda: self.connections)
        metrics.counter(
            "media_upgrades_rejected",
            "Counts rejected upgrades on the media port by status.",
            lambda: self.rejected,
            "status",
        )
        metrics.counter(
            "media_unfinished",
            "Counts connections to the media port that closed before a whole request had arrived.",
            lambda: self.unfinished,
        )

    def make_connection(self) -> MediaConnection:
        return MediaConnection(
            self,
            self._settings,
            self._endpoints,
            heartbeat_s=self._heartbeat_s,
            batched=self.batched,
            rejected=self.rejected,
        )

    def _tls(self) -> dict[str, Any]:
        if self.certificate is None:
            return {}
        return {
            "ssl": self.certificate.context,
            "ssl_handshake_timeout": self._settings.start_timeout_s or None,
            "ssl_shutdown_timeout": CLOSE_TIMEOUT_S,
        }

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
    def connections(self) -> int:
        """The number of connections whose upgrade was accepted and whose close has not begun."""
        return sum(connection.websocket.state is State.OPEN for connection in self._connections)

    def leave(self, connection: MediaConnection) -> None:
        self.limit.leave(connection.peer)
        if connection.task is None:
            self.unfinished += 1
            super().leave(connection)
        else:  # its session may not have ended yet
            connection.task.add_done_callback(lambda _: super(MediaListener, self).leave(connection))
