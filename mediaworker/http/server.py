"""Runs uvicorn inside the worker's own event loop; the worker starts and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from config import Settings
from config.listen import http_host
from config.log.rate_limit import LogRateLimit
from config.network.addresses import bound_tcp
from mediaworker.access.connections import ConnectionLimit
from mediaworker.access.local_trust import INCOMING, ConnectionInfo
from mediaworker.access.tls import certificate
from mediaworker.http.connection import CONNECTION, SWEEP_S, Guard, GuardedConnection

CLOSE_S = 5.0
WS_MAX_BYTES = 65536
UNSENT_BYTES = 1 << 14
"""The unsent output that the kernel accepts for a connection (TCP_NOTSENT_LOWAT). By default it accepts megabytes, and
a subscriber that never reads is sent thousands of events, at the cost of the others, before the worker notices. A limit
of the whole send buffer would also prevent that, but it would slow down connections with a long round trip, because
that buffer holds unacknowledged data, too."""


class UvicornLogFilter(logging.Filter):
    """Limits uvicorn's log: each message about a peer's malformed input passes once a minute, and messages about
    uvicorn's own failures always do."""

    OURS = (
        "ASGI callable returned without completing handshake.",  # said of every upgrade that was refused by us
        "Invalid UTF-8 sequence received from client.",  # the connection says whose
    )

    def __init__(self) -> None:
        super().__init__()
        self._limit = LogRateLimit()

    def filter(self, record: logging.LogRecord) -> bool:
        message = str(record.msg)
        if message in self.OURS:
            return False
        if record.exc_info or record.levelno < logging.WARNING:
            return True
        return self._limit.due(message, record.created) is not None


logging.getLogger("uvicorn.error").addFilter(UvicornLogFilter())


class _Server(uvicorn.Server):
    """A uvicorn server that leaves the handling of signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """The HTTP port. `start` binds it, and raises OSError when it cannot."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        """Configure the server. Raises ConfigError for a certificate that cannot be used."""
        self._settings = settings
        self.certificate = tls = certificate("http", settings.http)
        self.host = http_host(settings)
        http = settings.http
        limit = ConnectionLimit(http.max_connections, http.max_connections // 2)
        self.guard = Guard(limit, header_timeout_s=http.header_timeout_s, stall_s=http.transfer_timeout_s)
        self._sweep: asyncio.TimerHandle | None = None
        self._server = _Server(
            uvicorn.Config(
                connected(app),
                http=functools.partial(GuardedConnection, self.guard),  # type: ignore[arg-type]
                ws="websockets-sansio",
                lifespan="off",
                log_config=None,
                access_log=False,
                # The peer's address must be that of the connection, not of a header: access without keys depends on it.
                proxy_headers=False,
                server_header=False,
                ws_max_size=max(WS_MAX_BYTES, settings.media.max_message_bytes),
                ws_per_message_deflate=False,
                ws_ping_interval=settings.events.heartbeat_s,
                ws_ping_timeout=settings.events.heartbeat_s,
                timeout_graceful_shutdown=int(CLOSE_S),
                ssl_context_factory=None if tls is None else lambda config, default: tls.context,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.port = 0
        """The bound port, once started; it differs from the setting when that is 0."""

    async def start(self) -> None:
        listener = bound_tcp(self.host, self._settings.http.port)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)  # connections inherit it
        self.port = listener.getsockname()[1]
        self._task = asyncio.get_running_loop().create_task(self._server.serve([listener]), name="http")
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.01)
        self._check_connections()

    async def stop(self) -> None:
        """Close the port and its connections; connections that do not close within 5 s are aborted."""
        if self._task is None:
            return
        if self._sweep is not None:
            self._sweep.cancel()
        self._server.should_exit = True
        await self._task
        self.guard.abort()  # connections with unsent output for a peer that does not read are still open
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn of the loop
        self._task = None

    def _check_connections(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(SWEEP_S, self._check_connections)
        self.guard.sweep(loop.time())


def connected(app: ASGIApp) -> ASGIApp:
    """Wrap the application, so that it can read the connection's addresses and delay its response
    (`local_trust.ConnectionInfo`), and so that the connection knows when responses begin and end."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        connection: GuardedConnection = scope["state"].pop(CONNECTION)
        incoming = ConnectionInfo(scope["http_version"], scope["client"], scope["server"], connection.write_frame)
        scope[INCOMING] = incoming

        async def held_back() -> None:
            if incoming.delay_s:
                delay_s, incoming.delay_s = incoming.delay_s, 0.0
                await asyncio.sleep(delay_s)

        async def send_http(message: Message) -> None:
            await held_back()
            if message["type"] == "http.response.start":
                connection.answer_begins()
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                connection.answer_ended()

        async def send_websocket(message: Message) -> None:
            await held_back()
            try:
                await send(message)
            except RuntimeError:
                # uvicorn has closed the WebSocket because of the peer's frames or silence, and then reports the send as
                # an error of the application.
                if not connection.transport.is_closing():
                    raise
                raise ConnectionResetError from None

        await app(scope, receive, send_http if scope["type"] == "http" else send_websocket)

    return asked
