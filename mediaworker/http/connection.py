"""Connections of the HTTP port, protected against peers that are slow, greedy or malformed.

uvicorn bounds the size of a request's head, the buffer of its body and the pause between requests, but it waits for
ever for a head to end, for a body to arrive or for a response to be read. A `GuardedConnection` stands between the
transport and uvicorn's protocol and ends each of these waits. It sees every byte that passes, and `server.connected`
reports to it when the application begins and ends a response.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.frames import Close, CloseCode, Frame, Opcode

from config.metrics.counters import counter
from mediaworker.access.connections import ConnectionLimit, refused_places
from mediaworker.access.notices import Notices
from mediaworker.access.refusals import PROBLEM, refusal_body, refusal_headers
from mediaworker.http.fragments import FragmentCounter
from mediaworker.http.problem import OPENAI, Problem
from mediaworker.http.request_watch import UNREAD_SILENT_S, BadRequest, RequestWatch

SWEEP_S = 0.5
WRITE_BYTES = 1 << 14
"""The output that may wait in the worker for the peer to read it; beyond that, the application's writes wait."""
FULL = "too many connections"
MAX_FRAGMENTS = 4096
"""The most fragments of one WebSocket message: each costs memory, even an empty one."""
CONNECTION = "mediaworker.connection"
"""The key of the `GuardedConnection` in the state of an ASGI scope."""
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
"""An interim response, which a server may send before any response and clients ignore (RFC 9110 section 15.2)."""
PROBE_S = 1.0
"""The time before `INTERIM` is sent a second time. It doubles each time, since some clients limit the number of interim
responses."""
FIN = 0x80
VIOLATIONS = (CloseCode.PROTOCOL_ERROR, CloseCode.INVALID_DATA, CloseCode.MESSAGE_TOO_BIG)
"""The close codes with which uvicorn answers a peer's malformed or oversized frames."""
PING_TIMEOUT = CloseCode.INTERNAL_ERROR
"""The close code that uvicorn uses when the peer does not answer a ping."""


@dataclass(slots=True)
class HttpCounters:
    """The totals of one port, for its metrics."""

    bad_requests: int = counter("Counts requests that were not valid HTTP and frames that were not valid WebSocket.")
    slow_requests: int = counter(
        "Counts HTTP requests that were cut because their head or body did not arrive in time."
    )
    slow_readers: int = counter("Counts HTTP connections that were cut because the peer did not read.")


class Guard:
    """The limits and counters that the connections of one port share. Its owner calls `sweep` every `SWEEP_S`."""

    def __init__(self, limit: ConnectionLimit, *, header_timeout_s: float, stall_s: float) -> None:
        self.limit, self.header_timeout_s, self.stall_s = limit, header_timeout_s, stall_s
        self.lingering = refused_places()
        """Connections beyond `limit` that stay open until their request has arrived, so that the refusal is read."""
        self.counters = HttpCounters()
        self.notices = Notices()
        self.connections: set[GuardedConnection] = set()

    def sweep(self, now: float) -> None:
        for connection in tuple(self.connections):
            connection.check(now)

    def abort(self) -> None:
        """Abort every connection; unsent output is lost."""
        for connection in tuple(self.connections):
            connection.transport.abort()


class GuardedConnection(asyncio.Protocol):
    """One connection, as HTTP or, after an upgrade, as a WebSocket.

    `arguments` are those with which uvicorn calls the protocol class of its `http` option.
    """

    transport: asyncio.Transport

    def __init__(self, guard: Guard, **arguments: Any) -> None:
        self._guard, self._arguments = guard, arguments
        self._loop = asyncio.get_running_loop()
        self._inner: asyncio.Protocol | None = None
        """uvicorn's protocol; None for a connection beyond the limit."""
        self._peer = ""
        self._fragments: FragmentCounter | None = None
        """The counter of a WebSocket's fragments; None while the connection is not a WebSocket."""
        self._refused = self._unanswered = False
        """`_refused`: this class has sent the last response itself. `_unanswered`: uvicorn's ping was not answered."""
        self.lingering = False
        """True once the last response has been sent: further input is read and dropped."""
        self._half_closed_since: float | None = None
        """The time at which the peer closed its sending side. It waits for the response, or has gone."""
        self._probe_at = 0.0
        """The time at which `INTERIM` is sent next to a half-closed peer."""
        self._receiving = False
        """True while uvicorn handles input: frames that it writes meanwhile are reactions to the peer's."""
        self._inner_paused = self._held = self._paused = False
        """`_inner_paused`: uvicorn has paused reading. `_held`: this class has, because the peer does not read its
        output. `_paused`: the transport's reading is paused."""
        self._unread_since: float | None = None
        """The time since which the transport's buffer has been above its limit, because the peer does not read."""
        self._closing_since: float | None = None

    # -- from the transport -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's class does not derive from asyncio.Transport
        self.transport.set_write_buffer_limits(WRITE_BYTES)
        guard, now = self._guard, self._loop.time()
        self._watch = RequestWatch(now, header_timeout_s=guard.header_timeout_s, stall_s=guard.stall_s)
        address = transport.get_extra_info("peername")
        self._peer = address[0] if isinstance(address, tuple) else ""
        guard.connections.add(self)
        if reason := guard.limit.enter(self._peer):
            guard.notices.warn(self._peer, "http connections refused", now, f"limit: {reason}")
            if guard.lingering.enter(self._peer):
                self._refused = True
                self.transport.write(_refusal(503, FULL, ""))
                self.transport.close()
            return
        state = {**self._arguments["app_state"], CONNECTION: self}
        self._inner = H11Protocol(**self._arguments | {"app_state": state})
        self._inner.connection_made(WatchedTransport(self))

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.connections.discard(self)
        if self._inner is not None:
            self._guard.limit.leave(self._peer)
            if not self._refused:
                self._inner.connection_lost(exc)
        elif self.lingering or not self._refused:
            self._guard.lingering.leave(self._peer)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.lingering:
            self._linger(data)
        elif self._inner is None:
            self._turn_away(data)
        elif self._fragments is None:
            try:
                self._deliver(self._watch.receive(data, self._loop.time()))
            except BadRequest as bad:
                self._refuse_bad(bad)
            if self._watch.floods:
                self.transport.close()
        elif self._fragments.feed(data) > MAX_FRAGMENTS:
            close = Close(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
            self.transport.write(Frame(Opcode.CLOSE, close.serialize()).serialize(mask=False))
            self._note_violation(close.reason)
            self.transport.close()
        else:
            self._deliver(data)

    def eof_received(self) -> bool | None:
        """Return True to keep the sending side open: the peer may have closed only its own and wait for the response.

        A peer that has gone looks the same until something is sent to it, which makes its host reset the connection.
        """
        plain = self._fragments is None and self.transport.get_extra_info("ssl_object") is None
        if not plain or self.lingering or not self._watch.awaited or self._watch.answer_begun:
            return None
        if self._half_closed_since is None:
            self._half_closed_since = self._probe_at = self._loop.time()
        return True

    def pause_writing(self) -> None:
        self._unread_since = self._loop.time()
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._unread_since, self._held = None, False
        if self._inner is not None:
            self._inner.resume_writing()
        self._update_reading()

    # -- from the application -----------------------------------------------------------------------------------------

    def write_frame(self, frame: bytes) -> bool:
        """Write a frame that does not change the state of uvicorn's protocol; see `ConnectionInfo.write_frame`."""
        if self._unread_since is not None or self._refused or self.transport.is_closing():
            return False
        self.transport.write(frame)
        return True

    def answer_begins(self) -> None:
        self._watch.answer_begun = True

    def answer_ended(self) -> None:
        if self._refused or self.transport.is_closing():
            return
        try:
            self._deliver(self._watch.answered(self._loop.time()))
        except BadRequest as bad:
            self._refuse_bad(bad)
        if self._half_closed_since is not None and not self._watch.awaited:
            self.transport.close()

    # -- from uvicorn, by way of WatchedTransport ---------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._refused:
            return
        self.transport.write(data)
        if self._fragments is None:
            return
        close = _close_frame(data)
        if not self._receiving:
            self._unanswered = close is not None and close.code == PING_TIMEOUT
            return
        # Pongs would pile up for a peer that sends pings and does not read: no further input is read until it does.
        self._held = self._held or self._unread_since is not None
        if close is not None and close.code in VIOLATIONS:
            self._note_violation(close.reason)

    def close(self) -> None:
        if self._unanswered:  # close() would wait for unsent output, which a peer without pongs may never read
            self._guard.counters.slow_readers += self._unread_since is not None
            self.transport.abort()
        elif self._fragments is None and self._watch.unread and not self.lingering:
            self._begin_lingering()
        else:
            self.transport.close()

    def pause_reading(self, paused: bool) -> None:
        self._inner_paused = paused
        self._update_reading()

    def become_websocket(self, protocol: asyncio.Protocol) -> None:
        self._inner, self._fragments = protocol, FragmentCounter()

    # -- from the sweep -----------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """End a wait that has lasted too long."""
        if self.transport.is_closing():
            self._closing_since = self._closing_since or now  # unsent output is sent first, which may never end
            self._check_unread(now, self._unread_since or self._closing_since)
        elif self._fragments is None:  # for an open WebSocket uvicorn's pings find out whether the peer reads
            self._check_unread(now, self._unread_since)
            self._check_request(now)
            if self._half_closed_since is not None:
                self._check_half_closed(now, now - self._half_closed_since)

    def _check_unread(self, now: float, since: float | None) -> None:
        if since is not None and now - since > self._guard.stall_s:
            self._guard.counters.slow_readers += 1
            self._guard.notices.warn(self._peer, "a peer does not read what it is sent", now)
            self.transport.abort()

    def _check_request(self, now: float) -> None:
        if self._inner_paused:
            self._watch.postpone(now)
        overdue = self._watch.overdue(now)
        if overdue == "silent":
            self.transport.close()
        elif overdue == "late":
            self._guard.counters.slow_requests += 1
            self._guard.notices.warn(self._peer, "an HTTP request did not come in time", now)
            self._refuse(408, "the request did not come in time")

    # -- inside -------------------------------------------------------------------------------------------------------

    def _deliver(self, data: bytes) -> None:
        if data and self._inner is not None:
            self._receiving = True
            try:
                self._inner.data_received(data)
            finally:
                self._receiving = False
        self._update_reading()

    def _check_half_closed(self, now: float, since_s: float) -> None:
        """Find out whether a half-closed peer has gone, by sending interim responses. A peer with HTTP/1.0 does not
        know them, so its connection is aborted after `UNREAD_SILENT_S`."""
        probed = self._watch.takes_interim
        reset = self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if reset or (not probed and since_s > UNREAD_SILENT_S):
            self.transport.abort()
        elif probed and now >= self._probe_at and not self._watch.answer_begun:
            self.transport.write(INTERIM)
            self._probe_at = now + max(PROBE_S, since_s)

    def _begin_lingering(self) -> None:
        self.lingering, self._inner_paused, self._held = True, False, False
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._update_reading()

    def _linger(self, data: bytes) -> None:
        """Read and drop input after the last response: closing with unread input could destroy the response."""
        now = self._loop.time()
        try:
            self._watch.receive(data, now)
        except BadRequest:
            self._watch.refuse(now)
        if self._watch.floods or not self._watch.unread:
            self.transport.close()

    def _turn_away(self, data: bytes) -> None:
        """Refuse a peer beyond the limit once its request begins: clients do not expect a response before it."""
        now = self._loop.time()
        self._watch.refuse(now)
        self._watch.receive(data, now)
        self._refuse(503, FULL)
        if not self._watch.unread:
            self.transport.close()

    def _update_reading(self) -> None:
        pipelined = self._fragments is None and bool(self._watch.later) and not self.lingering
        paused = self._inner_paused or self._held or pipelined
        if paused == self._paused or self.transport.is_closing():
            return
        self._paused = paused
        if paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _refuse_bad(self, bad: BadRequest) -> None:
        self._guard.counters.bad_requests += 1
        self._guard.notices.warn(self._peer, "not HTTP", self._loop.time())
        self._refuse(bad.status, bad.detail)

    def _refuse(self, status: int, detail: str) -> None:
        """Send a refusal unless a response has begun, and close. Output that uvicorn writes later is dropped."""
        self._refused = True
        if not self._watch.answer_begun:
            self.transport.write(_refusal(status, detail, self._watch.path))
        if self._inner is not None:
            self._inner.connection_lost(ConnectionAbortedError())  # ends the application's work on the request
        self._watch.refuse(self._loop.time())
        self._begin_lingering()

    def _note_violation(self, reason: str) -> None:
        self._guard.counters.bad_requests += 1
        self._guard.notices.warn(self._peer, "not WebSocket", self._loop.time(), reason)


class WatchedTransport(asyncio.Transport):
    """The transport that uvicorn uses: it passes every call on to the `GuardedConnection`."""

    def __init__(self, connection: GuardedConnection) -> None:
        super().__init__()
        self._connection, self._transport = connection, connection.transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._connection.lingering or self._transport.is_closing()

    def close(self) -> None:
        self._connection.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.write(bytes(data))

    def pause_reading(self) -> None:
        self._connection.pause_reading(True)

    def resume_reading(self) -> None:
        self._connection.pause_reading(False)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._connection.become_websocket(cast(asyncio.Protocol, protocol))


def _refusal(status: int, detail: str, path: str) -> bytes:
    """A whole answer, in the form that clients of the path expect."""
    openai = path.startswith(OPENAI)
    body = Problem(status, detail).openai if openai else refusal_body(status, detail)
    kind = "application/json" if openai else PROBLEM
    fields = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Connection", "close")]
    head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    head += [f"{name}: {value}" for name, value in (*fields, *refusal_headers(status))]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def _close_frame(data: bytes) -> Close | None:
    """Return the close frame among short control frames of a server; None when there is none."""
    while len(data) >= 4 and data[0] in (FIN | Opcode.PONG, FIN | Opcode.CLOSE):
        frame, data = data[: 2 + data[1]], data[2 + data[1] :]
        if frame[0] == FIN | Opcode.CLOSE:
            return Close.parse(frame[2:])
    return None
