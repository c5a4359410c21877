"""RTP ports: even numbers within a range (RFC 3550 section 11), each resting before it is used again.

A peer that has not heard of a call's end goes on sending for a while; a resting port keeps that audio out of the next
call.
"""

from __future__ import annotations

import socket
from collections import deque

from sip.errors import PortsExhausted
from sip.reports import ReportSocket

QUARANTINE_S = 10.0


class RtpPorts:
    """Hands out bound, non-blocking UDP sockets. `now` is in seconds on any clock that does not go back."""

    def __init__(self, first: int, last: int, *, host: str = "0.0.0.0", quarantine_s: float = QUARANTINE_S) -> None:
        self._host = host
        self._quarantine_s = quarantine_s
        # First in, first out: a large range rests every port for far longer than the quarantine.
        self._free = deque(range(first + first % 2, last + 1, 2))
        self._resting: deque[tuple[float, int]] = deque()
        self.in_use = 0

    def open(self, now: float) -> socket.socket:
        """Raises PortsExhausted when every port is in use, resting, or taken by another program."""
        while self._resting and self._resting[0][0] <= now:
            self._free.append(self._resting.popleft()[1])
        for _ in range(len(self._free)):
            port = self._free.popleft()
            bound = self._bind(port)
            if bound is not None:
                self.in_use += 1
                return bound
            self._free.append(port)
        raise PortsExhausted(f"{self.in_use} RTP ports in use, {len(self._resting)} resting, none free")

    def above(self, bound: socket.socket) -> ReportSocket | None:
        """The odd port above it, for RTCP; None when another program has that."""
        try:
            return ReportSocket(self._host, bound.getsockname()[1] + 1)
        except (OSError, OverflowError):
            return None

    def close(self, bound: socket.socket, now: float) -> None:
        port = bound.getsockname()[1]
        bound.close()
        self.in_use -= 1
        self._resting.append((now + self._quarantine_s, port))

    def _bind(self, port: int) -> socket.socket | None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        try:
            sock.bind((self._host, port))
        except OSError:
            sock.close()
            return None
        return sock
