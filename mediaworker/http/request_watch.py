"""What one HTTP connection is waiting for, and until when. No I/O.

A second h11 parser reads along with the server's own. It refuses what is not HTTP before the server sees it, and it
knows where a request ends, so that the server is given one request at a time.
"""

from __future__ import annotations

import contextlib
from typing import Literal

import h11

from mediaworker.errors import MediaworkerError

MIN_RATE = 1000
"""Bytes a second: a body that comes more slowly than that, after `stall_s` of grace, is not waited for."""
UNREAD_BYTES, UNREAD_S, UNREAD_SILENT_S = 1 << 28, 30.0, 5.0
"""How much of a body that nobody wants is still read after its answer, for how long, and how long if nothing comes. A
connection that is closed with something unread is reset, which destroys the answer on its way to a peer that reads it
only when it has sent everything."""
UNREAD_CHUNKED_BYTES = 1 << 23
"""Of a body that does not say how long it is, which may have no end."""
MAX_HEAD = 16384
DETAIL = {
    426: "an upgrade takes HTTP/1.1 (for nginx: proxy_http_version 1.1)",
    431: "the head of the request is too long",
    501: "unknown Transfer-Encoding",
    505: "HTTP/1.0 or HTTP/1.1",
}


class BadRequest(MediaworkerError):
    """The peer's bytes are not an HTTP request that can be served; `status` is the answer that they deserve."""

    def __init__(self, status: int) -> None:
        self.status, self.detail = status, DETAIL.get(status, "not a valid HTTP/1.1 request")
        super().__init__(f"{status} {self.detail}")


class RequestWatch:
    """Follows the requests of one connection. `now`: seconds of any clock that does not jump."""

    def __init__(self, now: float, *, header_timeout_s: float, stall_s: float) -> None:
        self._header_timeout_s, self._stall_s = header_timeout_s, stall_s
        self._parser = h11.Connection(h11.SERVER, MAX_HEAD)
        self._whole = self._measured = False
        """All of the request has been received; its body says how long it is."""
        self._answered = self._dropping = False
        self.path = ""
        """Of the request; empty while its head has not come."""
        self.takes_interim = False
        """Whether the request's sender may be sent answers of status 1xx (RFC 9110 section 15.2)."""
        self.answer_begun = False
        self.later = b""
        """Bytes behind the request, which wait until it has been answered."""
        self._deadline: float | None = now + header_timeout_s
        self._body_since: float | None = None
        self._received = 0
        """Bytes of the body so far."""
        self._unwanted: int | None = None
        """Bytes of the body that came after the answer; None while there is no answer."""
        self._unread_until = 0.0

    @property
    def unread(self) -> bool:
        """Whether something is still coming that is read for the peer's sake alone, or the body of the request."""
        return not self._whole if self._dropping else self._parser.their_state is h11.SEND_BODY

    @property
    def awaited(self) -> bool:
        """Whether all of a request has come, and its answer has not been given."""
        return self._whole and not self._answered

    @property
    def floods(self) -> bool:
        """More of a body has come after its answer than is read for the peer's sake."""
        most = UNREAD_BYTES if self._measured else UNREAD_CHUNKED_BYTES
        return self._unwanted is not None and self._unwanted > most

    def receive(self, data: bytes, now: float) -> bytes:
        """The part of the data that the server may see now. Raises BadRequest."""
        if self._dropping:
            self._drop(data)
            self._expect_body(len(data), now)
            return b""
        passed = self._follow(data)
        while self._whole and self._answered:  # answered before all of its body had come
            passed += self._next_request()
        self._expect(len(data), now)
        return passed

    def answered(self, now: float) -> bytes:
        """The answer is complete. Returns what has come of the next request. Raises BadRequest."""
        self._answered = True
        passed = b""
        while self._whole and self._answered:
            passed += self._next_request()
        self._expect(0, now)
        return passed

    def refuse(self, now: float) -> None:
        """The last answer of the connection has been given. Whatever still comes is read for a while and dropped, to
        the end of the request if that has one."""
        self._answered = self._dropping = True
        self._expect_body(0, now)

    def overdue(self, now: float) -> Literal["", "silent", "late"]:
        """`late`: a request did not come in time. `silent`: nothing came, or nothing that anybody waits for."""
        if self._deadline is None or now < self._deadline:
            return ""
        self._deadline = None
        begun = self._body_since is not None or self._head_begun
        return "late" if begun and self._unwanted is None else "silent"

    def postpone(self, now: float) -> None:
        """It is the server that does not read."""
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
        # Without a head there is nothing to wait for: the server has a timer of its own between requests.
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
    """Raises BadRequest for what h11 lets pass, and for a request whose end two parties may see in two places."""
    names = [name for name, _ in request.headers]
    size = len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
    if request.http_version not in (b"1.0", b"1.1"):
        raise BadRequest(505)
    if size > MAX_HEAD:  # h11 limits only a head that comes in pieces
        raise BadRequest(431)
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version != b"1.1"):
        raise BadRequest(400)  # RFC 9112 section 6.1: an attempt at request smuggling, or as good as one
    if b"upgrade" in names and request.http_version != b"1.1":
        # RFC 6455 section 4.2.1. The WebSocket that comes of it would no longer be known as a proxy's.
        raise BadRequest(426)
