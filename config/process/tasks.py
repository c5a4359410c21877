"""Helpers for asyncio tasks: cancellation that is not lost, and long-lived tasks that restart after a bug of ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import structlog

AGAIN_S = 5.0
LEAST_S, MOST_S = 1.0, 30.0
"""The delay before a failed long-lived task is restarted: it doubles with each failure, from LEAST_S up to MOST_S."""
SOUND_S = 60.0
"""A task that has run for this long counts as sound, and its failures are counted from 1 again."""
STUCK = 3
"""From this number of failures in a row on, a task counts as stuck."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Failure:
    """The latest failure of a task."""

    count: int
    """The number of failures in a row."""
    at_s: float
    reason: str


faults: Counter[str] = Counter()
"""The number of failures of long-lived tasks, by name."""
_failures: dict[str, _Failure] = {}


def lasting(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
    """A task that runs `work` as long as the worker lives, or until it is cancelled: see `again_and_again`."""
    return asyncio.get_running_loop().create_task(again_and_again(work, name), name=name)


async def again_and_again(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run `work` until it returns, and restart it after every failure.

    A failure is a bug of ours. It is logged, counted and reported by `troubles`. The work is restarted, because it
    serves all calls and must not end with one of them.
    """
    task = asyncio.current_task()
    assert task is not None
    try:
        while True:
            begun_s = time.monotonic()
            try:
                return await work()
            except asyncio.CancelledError as error:
                if task.cancelling():
                    raise
                _note(name, error, begun_s)  # the cancellation of another task, not a request to end this one
            except Exception as error:
                _note(name, error, begun_s)
            await asyncio.sleep(min(LEAST_S * 2 ** (_failures[name].count - 1), MOST_S))
    finally:
        _failures.pop(name, None)


def _note(name: str, error: BaseException, begun_s: float) -> None:
    now_s, before = time.monotonic(), _failures.get(name)
    count = 1 if before is None or now_s - begun_s >= SOUND_S else before.count + 1
    _failures[name] = _Failure(count, now_s, type(error).__name__)
    faults[name] += 1
    log.error("a task has failed and begins again", task=name, failures=count, exc_info=error)


def troubles(*, stuck: bool) -> list[str]:
    """Descriptions of recently failed tasks: the stuck ones, whose work is not being done, or the other ones."""
    now_s = time.monotonic()
    return [
        f"a fault of the worker: {name} has failed, {each.count} times in a row ({each.reason}; the log says more)"
        for name, each in _failures.items()
        if now_s - each.at_s < SOUND_S and (each.count >= STUCK) == stuck
    ]


@contextlib.asynccontextmanager
async def within(seconds: float | None) -> AsyncIterator[None]:
    """Limit the time of the block: after `seconds` it is cancelled, without an error. None sets no limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Raise a cancellation at the end of the block that was lost inside it.

    `asyncio.wait_for` of Python 3.11 loses a cancellation that arrives together with the awaited result. With responses
    from another process that is frequent, because the loop then sees both in one iteration.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    yield
    if task.cancelling() > before:
        raise asyncio.CancelledError


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel the tasks, and wait until they have ended, ignoring their results. None is allowed.

    It waits even if the caller is cancelled meanwhile. A task that goes on is cancelled again every AGAIN_S seconds,
    because `asyncio.wait_for` of Python 3.11 may lose a cancellation that arrives together with the awaited result, and
    some libraries catch it.
    """
    ending, loop = [task for task in tasks if task is not None], asyncio.get_running_loop()

    timer: asyncio.TimerHandle

    def cancel() -> None:
        nonlocal timer
        for task in ending:
            task.cancel()
        timer = loop.call_later(AGAIN_S, cancel)

    cancel()
    try:
        await asyncio.gather(*ending, return_exceptions=True)
    finally:
        timer.cancel()
