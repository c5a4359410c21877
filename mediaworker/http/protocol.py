"""uvicorn's connections, made fit for peers that are slow, greedy or wrong.

uvicorn bounds a request's head, its body's buffer and the pause between requests, but waits for ever for a head to end,
a body to come or an answer to be read. Here every such wait has an end, and one sweep looks after all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from mediaworker.ingress.connections import ConnectionLimit
from mediaworker.ingress.notices import Notices
from mediaworker.ingress.runner import PROBLEM, refusal_body, refusal_headers

SWEEP_S = 0.5
MIN_RATE = 1000
"""Bytes a second: a body that comes more slowly than that, after `stall_s` of grace, is not waited for."""
UNREAD_BYTES, UNREAD_S = 262144, 2.0
"""How much of a body that nobody wants is still read after its answer, so that the peer gets to see the answer."""
MAX_HEAD = 16384
MAX_FRAGMENTS = 4096
"""Of one WebSocket message: each costs memory, even an empty one."""
DETAIL = {
    426: "an upgrade takes HTTP/1.1 (for nginx: proxy_http_version 1.1)",
    431: "the head of the request is too long",
    501: "unknown Transfer-Encoding",
    505: "HTTP/1.0 or HTTP/1.1",
}


@dataclass(slots=True)
class HttpCounters:
    """Plain totals, for metrics."""

    bad_requests: int = 0
    """Requests that are not HTTP, and frames that are not WebSocket."""
    slow_requests: int = 0
    """Heads and bodies that did not come in time."""
    slow_readers: int = 0
    """Connections cut because the peer did not read what it was sent."""


class Guard:
    """What the connections of one port share. `sweep` is called by its owner every `SWEEP_S`."""

    def __init__(self, limit: ConnectionLimit, *, header_timeout_s: float, stall_s: float) -> None:
        self.limit, self.header_timeout_s, self.stall_s = limit, header_timeout_s, stall_s
        self.counters = HttpCounters()
        self.notices = Notices()
        self._connections: weakref.WeakSet[Guarded] = weakref.WeakSet()

    def watch(self, connection: Guarded) -> None:
        self._connections.add(connection)

    def forget(self, connection: Guarded) -> None:
        self._connections.discard(connection)

    def sweep(self, now: float) -> None:
        for connection in tuple(self._connections):
            connection.look(now)


class Guarded(asyncio.Protocol):
    """A connection that the sweep looks at: it is cut when its peer does not take what is sent."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _guard: Guard
    _peer: str
    _unread_since: float | None = None
    """Since when more waits to be sent than the transport likes to hold."""
    _closing_since: float | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since = None

    def look(self, now: float) -> None:
        if self.transport.is_closing() and self._closing_since is None:
            self._closing_since = now  # what is left is sent first, which may never end
        since = self._unread_since if self._closing_since is None else self._closing_since
        if since is not None and now - since > self._guard.stall_s:
            self._guard.counters.slow_readers += 1
            self._guard.notices.warn(self._peer, "a peer does not read what it is sent", now)
            self.transport.abort()


class HttpConnection(h11.Connection):
    """h11's, which remembers what was wrong, and refuses a request whose end two parties may see in two places."""

    status = 400
    """For the answer to the last error."""

    def next_event(self) -> Any:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.status = error.error_status_hint
            raise
        if isinstance(event, h11.Request):
            self._check(event)
        return event

    def _check(self, request: h11.Request) -> None:
        names = [name for name, _ in request.headers]
        size = len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
        if request.http_version not in (b"1.0", b"1.1"):
            self._refuse(505, "neither HTTP/1.0 nor HTTP/1.1")
        elif size > MAX_HEAD:  # h11 minds only a head that comes in pieces
            self._refuse(431, "the head of the request is too long")
        elif b"transfer-encoding" in names and (b"content-length" in names or request.http_version != b"1.1"):
            # RFC 9112 section 6.1: an attempt at request smuggling, or as good as one.
            self._refuse(400, "Transfer-Encoding with Content-Length, or in HTTP/1.0")
        elif b"upgrade" in names and request.http_version != b"1.1":
            # RFC 6455 section 4.2.1. The WebSocket that comes of it would no longer be known as a proxy's.
            self._refuse(426, "an upgrade in HTTP/1.0")

    def _refuse(self, status: int, why: str) -> None:
        self.status = status
        raise h11.RemoteProtocolError(why)


class HttpProtocol(Guarded, H11Protocol):
    """One HTTP connection, until it becomes a WebSocket."""

    def __init__(self, guard: Guard, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._http = self.conn = HttpConnection(h11.SERVER, MAX_HEAD)
        self._guard, self._peer = guard, ""
        self._entered = False
        self._deadline: float | None = None
        self._body_since: float | None = None
        self._received = 0
        """Bytes of the body so far."""
        self._unwanted: int | None = None
        """Of these, what came after the answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self._guard.watch(self)
        now = self.loop.time()
        if reason := self._guard.limit.enter(self._peer):
            self._guard.notices.warn(self._peer, "http connections refused", now, f"limit: {reason}")
            self._say(503, "too many connections")
            return
        self._entered = True
        self._deadline = now + self._guard.header_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.forget(self)
        if self._entered:
            self._entered = False
            self._guard.limit.leave(self._peer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._look_ahead(len(data))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look_ahead(0)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        # The new protocol takes over the place among the connections with the transport.
        self._guard.forget(self)
        super().handle_websocket_upgrade(event)

    def _look_ahead(self, count: int) -> None:
        """What is being waited for, and until when."""
        now, state = self.loop.time(), self.conn.their_state
        if state is h11.SEND_BODY:
            self._expect_body(count, now)
            return
        self._body_since = self._unwanted = None
        if state is h11.IDLE and self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._deadline = self._deadline or now + self._guard.header_timeout_s  # a head has begun
        else:
            self._deadline = None  # nothing, or uvicorn's own timer between requests

    def _expect_body(self, count: int, now: float) -> None:
        if self._body_since is None:
            self._body_since, self._received = now, 0
        self._received += count
        if self.cycle is None or not self.cycle.response_complete:
            self._deadline = self._body_since + self._guard.stall_s + self._received / MIN_RATE
        elif self._unwanted is None:
            self._unwanted, self._deadline = 0, now + UNREAD_S
        else:
            self._unwanted += count
            if self._unwanted > UNREAD_BYTES:
                self.transport.close()

    def look(self, now: float) -> None:
        super().look(now)
        if self._deadline is None or now < self._deadline or self.transport.is_closing():
            return
        if self.flow.read_paused:  # it is us who do not read
            self._deadline = now + self._guard.stall_s
            return
        self._deadline = None
        begun = self._body_since is not None or self.conn.trailing_data[0]
        if self._unwanted is not None or not begun:  # answered already, or never asked
            self.transport.close()
            return
        self._guard.counters.slow_requests += 1
        self._guard.notices.warn(self._peer, "an HTTP request did not come in time", now)
        self._say(408, "the request did not come in time")

    def send_400_response(self, msg: str) -> None:
        self._guard.counters.bad_requests += 1
        self._guard.notices.warn(self._peer, "not HTTP", self.loop.time())
        status = self._http.status
        self._say(status, DETAIL.get(status, "not a valid HTTP/1.1 request"))

    def _say(self, status: int, detail: str) -> None:
        """Answer, when no answer has begun, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = refusal_body(status, detail)
            fields = [("Content-Type", PROBLEM), ("Content-Length", str(len(body))), ("Connection", "close")]
            head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
            head += [f"{name}: {value}" for name, value in (*fields, *refusal_headers(status))]
            self.transport.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        if self.cycle is not None:  # the application hears that nothing more comes, and its answer goes nowhere
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def shutdown(self) -> None:
        with contextlib.suppress(h11.LocalProtocolError):  # refused, and not gone yet
            super().shutdown()
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class WebSocketProtocol(Guarded, WebSocketsSansIOProtocol):
    """One WebSocket of the HTTP port.

    A peer that has stopped reading is cut off when it does not answer a ping: uvicorn's own way, to close, waits for
    the send buffer to drain, which is just what does not happen.
    """

    def __init__(self, guard: Guard, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guard, self._peer = guard, ""
        self._held = self._broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self._guard.watch(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.forget(self)
        self._guard.limit.leave(self._peer)
        super().connection_lost(exc)

    def look(self, now: float) -> None:
        if self.transport.is_closing():  # while it is open, pings tell
            super().look(now)

    def keepalive_timeout(self) -> None:
        self._guard.counters.slow_readers += self._unread_since is not None
        self._broken = True
        super().keepalive_timeout()
        self.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._held:
            self._held = False
            if not self.read_paused:
                self.transport.resume_reading()

    def handle_ping(self) -> None:
        super().handle_ping()
        if not self.writable.is_set() and not self._held and not self.transport.is_closing():
            # Pongs that nobody reads would pile up: no further pings are read until they are taken.
            self._held = True
            if not self.read_paused:
                self.transport.pause_reading()

    async def send(self, message: Any) -> None:
        if self._broken:  # by the peer: for the application it has gone
            raise ClientDisconnected()
        await super().send(message)

    async def receive(self) -> Any:
        message = await super().receive()
        if self._held:
            self.transport.pause_reading()
        return message

    def handle_cont(self, event: Any) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self._fail(1009, "too many fragments")
            return
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self._fail(1007, "not UTF-8")
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        self._guard.counters.bad_requests += 1
        self._guard.notices.warn(self._peer, "not WebSocket", self.loop.time(), str(self.conn.parser_exc or ""))
        self._broken = True
        super().handle_parser_exception()

    def _fail(self, code: int, reason: str) -> None:
        if self.close_sent or self.transport.is_closing():
            return
        with contextlib.suppress(Exception):  # the close handshake has begun: nothing to add
            self.conn.fail(code, reason)
        if self.conn.close_sent is not None:
            self.handle_parser_exception()
        else:
            self.transport.close()
