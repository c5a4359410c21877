"""RTP ports: even numbers within a range (RFC 3550 section 11), each with a quarantine before it is used again.

A number belongs to a single stream, whether it uses IPv4 or IPv6.

A peer that does not know of a call's end continues to send for a while; the quarantine keeps that audio out of the next
call.
"""

from __future__ import annotations

import socket
from collections import deque

from config.network.addresses import Family, bound_udp
from sip.media.rtcp_socket import open_reports
from sip.protocol.errors import PortsExhausted

QUARANTINE_S = 10.0


class RtpPorts:
    """Hands out bound, non-blocking UDP sockets. `now` is in seconds on any clock that does not go back."""

    def __init__(
        self, first: int, last: int, *, host: str = "0.0.0.0", host6: str = "", quarantine_s: float = QUARANTINE_S
    ) -> None:
        self._hosts: dict[Family, str] = {"IP4": host, "IP6": host6}
        self._quarantine_s = quarantine_s
        # First in, first out: in a large range every port rests far longer than the quarantine.
        self._free = deque(range(first + first % 2, last + 1, 2))
        self._resting: deque[tuple[float, int]] = deque()
        self.in_use = 0

    def open(self, now: float, family: Family = "IP4") -> socket.socket:
        """Open a socket. Raises PortsExhausted if every port is in use, resting, or bound by another program."""
        assert self._hosts[family], "a stream of this family is refused before"
        while self._resting and self._resting[0][0] <= now:
            self._free.append(self._resting.popleft()[1])
        for _ in range(len(self._free)):
            port = self._free.popleft()
            try:
                bound = bound_udp(self._hosts[family], port, family)
            except OSError:
                self._free.append(port)
                continue
            self.in_use += 1
            return bound
        raise PortsExhausted(f"{self.in_use} RTP ports in use, {len(self._resting)} resting, none free")

    def above(self, bound: socket.socket) -> socket.socket | None:
        """The odd port above it, for RTCP; None when another program has that."""
        try:
            host, port = bound.getsockname()[:2]
            return open_reports(host, port + 1)
        except (OSError, OverflowError):
            return None

    def close(self, bound: socket.socket, now: float) -> None:
        port = bound.getsockname()[1]
        bound.close()
        self.in_use -= 1
        self._resting.append((now + self._quarantine_s, port))
