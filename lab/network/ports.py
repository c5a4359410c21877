"""Ports for tests: below those that the system gives to outgoing connections, and apart for parallel processes."""

from __future__ import annotations

import itertools
import os
import socket

GROUPS = 4
"""Of processes that run tests at once."""
_first = 20000 + 3000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % GROUPS)
_single = itertools.cycle(range(_first, _first + 1500))
_media, _last = _first + 1500, _first + 2999
_next = _media


def ports(count: int) -> list[int]:
    """Distinct ports that nobody uses, neither for TCP nor for UDP; none is given out again soon."""
    return list(itertools.islice((port for port in _single if _is_free(port)), count))


def free_port() -> int:
    return ports(1)[0]


def port_range(count: int) -> tuple[int, int]:
    """The first, which is even, and the last of so many ports, for RTP."""
    global _next
    if _next + count > _last + 1:
        _next = _media
    first = _next
    _next += count + count % 2
    return first, first + count - 1


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
        try:
            udp.bind(("0.0.0.0", port))
            tcp.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
