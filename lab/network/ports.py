"""Ports for tests: below those that the system gives to outgoing connections, and apart for parallel processes.

Each process that takes ports has a block of them to itself, of whichever run of the tests it is, and another block for
RTP: it holds a lock on the block's file until it ends. With more processes than blocks, some share one.
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

FIRST, BLOCKS, SINGLE = 20000, 16, 250
"""Of ports that are given out one by one: where the first block begins, how many there are, and how long each is."""
FIRST_RTP, BLOCKS_RTP, RTP = 24000, 8, 1096


@cache
def _block(kind: str, blocks: int) -> int:
    """The number of this process's block, whose file stays open and locked until the process ends."""
    for number in range(blocks):
        try:
            file = os.open(Path(tempfile.gettempdir(), f"mediaworker-{kind}-{number}"), os.O_CREAT | os.O_WRONLY, 0o666)
        except OSError:
            continue  # another user's
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number
        except OSError:
            os.close(file)
    return os.getpid() % blocks


@cache
def _singles() -> Iterator[int]:
    first = FIRST + _block("ports", BLOCKS) * SINGLE
    return itertools.cycle(range(first, first + SINGLE))


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
    if _given + count > RTP:
        _given = 0
    first = FIRST_RTP + _block("rtp", BLOCKS_RTP) * RTP + _given
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
