"""Ports for tests: below those that the system gives to outgoing connections, and apart for parallel processes.

Each process that takes ports has a block of them to itself, of whichever run of the tests it is: it holds a lock on the
block's file until it ends.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO

FIRST, BLOCKS = 20000, 11
SINGLE, MEDIA = 150, 1010
"""How many of a block are given out one by one, and how many as ranges for RTP."""
_locks: list[IO[str]] = []


@cache
def _block() -> int:
    """The first port of this process's block. With more processes than blocks, some share one."""
    for number in range(BLOCKS):
        try:
            file = Path(tempfile.gettempdir(), f"mediaworker-ports-{number}").open("w")
        except OSError:
            continue  # another user's
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
        else:
            _locks.append(file)
            break
    else:
        number = os.getpid() % BLOCKS
    return FIRST + number * (SINGLE + MEDIA)


@cache
def _singles() -> Iterator[int]:
    return itertools.cycle(range(_block(), _block() + SINGLE))


def ports(count: int) -> list[int]:
    """Distinct ports that nobody uses, neither for TCP nor for UDP; none is given out again soon."""
    return list(itertools.islice((port for port in _singles() if _is_free(port)), count))


def free_port() -> int:
    return ports(1)[0]


_given = 0
"""How many of the ports for RTP have been given out since the first was."""


def port_range(count: int) -> tuple[int, int]:
    """The first, which is even, and the last of so many ports, for RTP."""
    global _given
    if _given + count > MEDIA:
        _given = 0
    first = _block() + SINGLE + _given
    _given += count + count % 2
    return first, first + count - 1


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
        try:
            udp.bind(("0.0.0.0", port))
            tcp.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
