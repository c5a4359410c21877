"""How long a test waits: a limit is for a quiet machine with a core for each test, and multiplied by one factor.

The factor is how much slower than that this machine is, measured once at the start of a run, times the tests that share
a core; TESTS_TIMEOUT_FACTOR in the environment takes the place of what is measured. A limit is what a failure costs and
never what a test is about: no test passes or fails by how fast a machine is.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

NAME = "TESTS_TIMEOUT_FACTOR"
REFERENCE_S = 0.1
"""The time that `_work` takes on a quiet core of the machines on which the limits were written."""


def _work() -> float:
    begin_s = time.perf_counter()
    value = b""
    for _ in range(100_000):
        value = hashlib.sha256(value).digest()
    return time.perf_counter() - begin_s


def settle() -> None:
    """Measure this machine, unless that has been done for this run."""
    if NAME not in os.environ:
        os.environ[NAME] = f"{max(1.0, max(_work() for _ in range(3)) / REFERENCE_S):.2f}"


def factor() -> float:
    at_once = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return float(os.environ.get(NAME, "1")) * max(1.0, at_once / (os.cpu_count() or 1))


def seconds(quiet_s: float) -> float:
    """A limit on this machine, from what it is on a quiet one."""
    return quiet_s * factor()


def timeout(quiet_s: float) -> asyncio.Timeout:
    """As `asyncio.timeout`, with a limit for a quiet machine."""
    return asyncio.timeout(seconds(quiet_s))


async def wait_for(awaitable: Awaitable[T], quiet_s: float) -> T:
    """As `asyncio.wait_for`, with a limit for a quiet machine."""
    return await asyncio.wait_for(awaitable, seconds(quiet_s))


async def eventually(condition: Callable[[], object], timeout_s: float = 30) -> None:
    """Until the condition holds, for what nobody announces: in a library, a thread, or at the other end of a socket."""
    async with timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def until(condition: Any, timeout_s: float = 30, what: str = "") -> Any:
    """As `eventually`, where there is no event loop: the first true value of `condition()`."""
    deadline = time.monotonic() + seconds(timeout_s)
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s on a quiet machine: {what or condition}"
        time.sleep(0.05)
    return value
