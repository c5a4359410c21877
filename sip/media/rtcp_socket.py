"""The RTCP socket on the port above a stream's RTP port (RFC 3550 section 11), read whenever a report is due."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

from config.network.addresses import bound_udp, family_of
from sip.media.latching import Address

_SO_TIMESTAMPNS = 35
_MAX_DATAGRAMS = 32
"""The most reports read at a time; they arrive every few seconds."""
_MAX_BYTES = 1500


def open_reports(host: str, port: int) -> socket.socket:
    """Raises OSError when the port is another program's."""
    sock = bound_udp(host, port, family_of(host))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    return sock


def received_reports(sock: socket.socket) -> Iterator[tuple[bytes, Address, float]]:
    """The datagrams that have come since, their sources, and their arrival times (Unix time)."""
    for _ in range(_MAX_DATAGRAMS):
        try:
            datagram, ancillary, _, address = sock.recvmsg(_MAX_BYTES, 64)
        except OSError:
            return
        stamps = [data for _, kind, data in ancillary if kind == _SO_TIMESTAMPNS and len(data) == 16]
        seconds, nanoseconds = struct.unpack("=qq", stamps[0]) if stamps else (time.time(), 0)
        yield datagram, address[:2], seconds + nanoseconds * 1e-9
