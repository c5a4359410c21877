"""Follows the requests of one HTTP connection: what the server waits for, and until when. No I/O.

A second h11 parser reads the same bytes as the server's own. It refuses input that is not HTTP before the server sees
it, and it finds the end of each request, so that the server receives one request at a time.
"""

from __future__ import annotations

import contextlib
from typing import Literal

import h11

from mediaworker.errors import MediaworkerError

MIN_RATE = 1000
"""The slowest rate of a body in bytes per second, after `stall_s` of grace; a slower one is refused as late."""
UNREAD_BYTES, UNREAD_S, UNREAD_SILENT_S = 1 << 28, 30.0, 5.0
"""How many bytes of a body are still read after its response, for how long in all, and for how long without input. A
connection that is closed with unread input is reset. The reset destroys a response on its way to a peer that reads it
only after it has sent its whole request."""
UNREAD_CHUNKED_BYTES = 1 << 23
"""The same limit of bytes for a body without a declared length, which may be endless."""
MAX_HEAD = 16384
DETAIL = {
    426: "an upgrade takes HTTP/1.1 (for nginx: proxy_http_version 1.1)",
    431: "the head of the request is too long",
    501: "unknown Transfer-Encoding",
    505: "HTTP/1.0 or HTTP/1.1",
}


class BadRequest(MediaworkerError):
    """The peer's bytes are not an HTTP request that can be served; `status` is the HTTP status of the refusal."""

    def __init__(self, status: int) -> None:
        self.status, self.detail = status, DETAIL.get(status, "not a valid HTTP/1.1 request")
        super().__init__(f"{status} {self.detail}")


class RequestWatch:
    """Follows the requests of one connection. `now`: seconds of a monotonic clock."""

    def __init__(self, now: float, *, header_timeout_s: float, stall_s: float) -> None:
        self._header_timeout_s, self._stall_s = header_timeout_s, stall_s
        self._parser = h11.Connection(h11.SERVER, MAX_HEAD)
        self._whole = self._measured = False
        """`_whole`: the request has been received to its end. `_measured`: its head declares a Content-Length."""
        self._answered = self._dropping = False
        """`_answered`: the response is complete. `_dropping`: it is the connection's last, so input is dropped."""
        self.path = ""
        """The path of the request; empty until its head has arrived."""
        self.takes_interim = False
        """True when the peer may be sent responses of status 1xx (RFC 9110 section 15.2)."""
        self.answer_begun = False
        self.later = b""
        """Bytes after the request, which wait until it has been answered."""
        self._deadline: float | None = now + header_timeout_s
        self._body_since: float | None = None
        self._received = 0
        """The number of bytes of the body so far."""
        self._unwanted: int | None = None
        """The number of bytes of the body that came after the response; None before its end."""
        self._unread_until = 0.0

    @property
    def unread(self) -> bool:
        """True while the body of the request, or input that is only dropped, is still to come."""
        return not self._whole if self._dropping else self._parser.their_state is h11.SEND_BODY

    @property
    def awaited(self) -> bool:
        """True while a request has arrived completely and its response is not complete."""
        return self._whole and not self._answered

    @property
    def floods(self) -> bool:
        """True when the peer has sent more of a body after its response than is read and dropped."""
        most = UNREAD_BYTES if self._measured else UNREAD_CHUNKED_BYTES
        return self._unwanted is not None and self._unwanted > most

    def receive(self, data: bytes, now: float) -> bytes:
        """Follow input; return the part of it that the server may see now. Raises BadRequest."""
        if self._dropping:
            self._drop(data)
            self._expect_body(len(data), now)
            return b""
        passed = self._follow(data)
        while self._whole and self._answered:  # the response was complete before the body had arrived
            passed += self._next_request()
        self._expect(len(data), now)
        return passed

    def answered(self, now: float) -> bytes:
        """Note that the response is complete; return the input of the next request so far. Raises BadRequest."""
        self._answered = True
        passed = b""
        while self._whole and self._answered:
            passed += self._next_request()
        self._expect(0, now)
        return passed

    def refuse(self, now: float) -> None:
        """Note that the last response of the connection has been sent. Further input is read for a while and dropped,
        up to the end of the request if that has one."""
        self._answered = self._dropping = True
        self._expect_body(0, now)

    def overdue(self, now: float) -> Literal["", "silent", "late"]:
        """Return `late` when a request did not arrive in time, `silent` when nothing arrived or only input that is
        dropped, and an empty string before the deadline."""
        if self._deadline is None or now < self._deadline:
            return ""
        self._deadline = None
        begun = self._body_since is not None or self._head_begun
        return "late" if begun and self._unwanted is None else "silent"

    def postpone(self, now: float) -> None:
        """Postpone the deadline, because the server itself has paused reading."""
        if self._deadline is not None:
            self._deadline = max(self._deadline, now + self._stall_s)

    def _next_request(self) -> bytes:
        self._parser, self.path = h11.Connection(h11.SERVER, MAX_HEAD), ""
        self._whole = self._answered = self.answer_begun = False
        data, self.later = self.later, b""
        return self._follow(data) if data else b""

    def _follow(self, data: bytes) -> bytes:
        if self._whole:
            self.later += data
            return b""
        self._parser.receive_data(data)
        while True:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError as error:
                raise BadRequest(error.error_status_hint) from None
            if isinstance(event, h11.Request):
                self.path = event.target.decode("latin-1").partition("?")[0]
                self.takes_interim = event.http_version == b"1.1"
                _check(event)
                self._measured = any(name == b"content-length" for name, _ in event.headers)
            elif isinstance(event, h11.EndOfMessage):
                self._whole, self.later = True, self._parser.trailing_data[0]
                return data[: len(data) - len(self.later)]
            elif event is h11.NEED_DATA:
                return data

    def _drop(self, data: bytes) -> None:
        if self._parser.their_state is not h11.ERROR:
            with contextlib.suppress(BadRequest):
                self._follow(data)

    @property
    def _head_begun(self) -> bool:
        return not self._whole and bool(self._parser.trailing_data[0])

    def _expect(self, count: int, now: float) -> None:
        if self._parser.their_state is h11.SEND_BODY:
            self._expect_body(count, now)
            return
        self._body_since = self._unwanted = None
        # Without the beginning of a head nothing is awaited here: the server has its own timer between requests.
        self._deadline = (self._deadline or now + self._header_timeout_s) if self._head_begun else None

    def _expect_body(self, count: int, now: float) -> None:
        if self._body_since is None:
            self._body_since, self._received = now, 0
        self._received += count
        if not self._answered:
            self._deadline = self._body_since + self._stall_s + self._received / MIN_RATE
            return
        if self._unwanted is None:
            self._unwanted, self._unread_until = 0, now + UNREAD_S
        else:
            self._unwanted += count
        self._deadline = min(now + UNREAD_SILENT_S, self._unread_until)


def _check(request: h11.Request) -> None:
    """Raise BadRequest for requests that h11 accepts and the worker does not: among them requests whose end a proxy may
    see at another place."""
    names = [name for name, _ in request.headers]
    size = len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
    if request.http_version not in (b"1.0", b"1.1"):
        raise BadRequest(505)
    if size > MAX_HEAD:  # h11 limits only a head that arrives in several pieces
        raise BadRequest(431)
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version != b"1.1"):
        raise BadRequest(400)  # RFC 9112 section 6.1: it may be an attempt at request smuggling
    if b"upgrade" in names and request.http_version != b"1.1":
        # RFC 6455 section 4.2.1 requires HTTP/1.1. HTTP/1.0 also marks a request as one of a proxy, and the WebSocket
        # that would result no longer shows the version.
        raise BadRequest(426)
