"""The media listener: WebSockets that carry audio, on a port of their own and without a web framework.

A message costs two thirds of what it costs behind ASGI, and there is no compression to undo: µ-law does not compress.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from config.settings import Media
from mediaworker.ingress.ports import Endpoint, SessionFactory, Upgrade
from mediaworker.ingress.shell import PROBLEM, Throttle, drive, refusal_body, refusal_headers
from mediaworker.registry import Refused

log = structlog.get_logger()

CLOSE_TIMEOUT_S = 2.0
QUEUED_MESSAGES = 64
"""Per connection, read and not yet taken: 640 ms of a two-track stream; beyond it the socket is not read."""

# The library logs every port scanner's half handshake with a traceback; what matters is logged here.
_quiet = logging.getLogger("mediaworker.ingress.websockets")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


class MediaConnection(ServerConnection):
    """A connection that knows what was admitted."""

    endpoint: Endpoint
    opens: SessionFactory

    async def receive(self) -> str | bytes | None:
        try:
            return await self.recv(decode=False if self.endpoint.text_as_bytes else None)
        except ConnectionClosed:
            return None


class _Socket:
    """`shell.MediaSocket` over a connection of the library."""

    def __init__(self, connection: MediaConnection) -> None:
        self.receive = connection.receive
        self._connection = connection

    async def send(self, text: str) -> None:
        try:
            await self._connection.send(text)
        except ConnectionClosed:
            pass  # the next receive says so

    async def close(self, code: int, reason: str) -> None:
        await self._connection.close(code, reason)


class MediaListener:
    """Routes upgrades to endpoints by path. `endpoints` may grow before `start`."""

    def __init__(self, settings: Media, endpoints: Mapping[str, Endpoint], throttle: Throttle) -> None:
        self.rejected: dict[int, int] = {}
        """Upgrades that did not become a session, by HTTP status."""
        self._settings, self._endpoints, self._throttle = settings, endpoints, throttle
        self._server: Server | None = None

    async def start(self) -> None:
        """Raises OSError when the port is taken."""
        settings = self._settings
        self._server = await serve(
            self._serve,
            settings.host or None,
            settings.port,
            process_request=self._admit,
            select_subprotocol=self._subprotocol,
            create_connection=MediaConnection,
            compression=None,
            max_size=settings.max_message_bytes,
            max_queue=QUEUED_MESSAGES,
            open_timeout=settings.start_timeout_s or None,
            # Media flows all the time, and sessions have deadlines: a ping would tell nothing new.
            ping_interval=None,
            close_timeout=CLOSE_TIMEOUT_S,
            server_header=None,
            logger=_quiet,
        )
        log.info("media listener", host=settings.host, port=self.port)

    async def stop(self) -> None:
        """Close the port and every connection (1001); returns when the last handler has ended."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    @property
    def port(self) -> int:
        """The bound port; of interest when the configured one is 0."""
        assert self._server is not None, "not started"
        port: int = next(iter(self._server.sockets)).getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._server.connections) if self._server is not None else 0

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        assert isinstance(connection, MediaConnection)
        path = urlsplit(request.path).path
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            return self._reject(connection, 404, "nothing here")
        peer = connection.remote_address
        upgrade = Upgrade(
            path=path, headers=tuple(request.headers.raw_items()), peer=peer[0] if isinstance(peer, tuple) else ""
        )
        try:
            connection.opens = endpoint.admit(upgrade)
        except Refused as refused:
            return self._reject(connection, refused.status, refused.reason)
        connection.endpoint = endpoint
        return None

    def _reject(self, connection: ServerConnection, status: int, reason: str) -> Response:
        self.rejected[status] = self.rejected.get(status, 0) + 1
        response = connection.respond(status, refusal_body(status, reason).decode())
        del response.headers["Content-Type"]
        for name, value in [("Content-Type", PROBLEM), *refusal_headers(status)]:
            response.headers[name] = value
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
            log.exception("media connection failed", path=connection.request.path)
            await connection.close(1011, "internal error")
