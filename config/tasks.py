"""The end of tasks: cancellations that are not lost, and long-lived tasks that go on after a fault of ours."""

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
"""A long-lived task that has failed is begun again after as long, twice as long each time."""
SOUND_S = 60.0
"""One that has lived for so long is sound."""
STUCK = 3
"""So many failures in a row are no accident."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Failure:
    """The latest of a task."""

    count: int
    """In a row."""
    at_s: float
    reason: str


faults: Counter[str] = Counter()
"""How often long-lived tasks have failed, by their names."""
_failures: dict[str, _Failure] = {}


def lasting(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
    """A task that lasts as long as the worker, or until it is cancelled: see `again_and_again`."""
    return asyncio.get_running_loop().create_task(again_and_again(work, name), name=name)


async def again_and_again(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Until `work` returns. When it fails, which is a fault of ours, that is logged, counted and told (`troubles`), and
    it is begun again: what it does for all calls must not end with one of them."""
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
                _note(name, error, begun_s)  # somebody else's, which is no order to end
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
    """Long-lived tasks that have failed lately; `stuck`: again and again, so that what they do is not done."""
    now_s = time.monotonic()
    return [
        f"a fault of the worker: {name} has failed, {each.count} times in a row ({each.reason}; the log says more)"
        for name, each in _failures.items()
        if now_s - each.at_s < SOUND_S and (each.count >= STUCK) == stuck
    ]


@contextlib.asynccontextmanager
async def within(seconds: float | None) -> AsyncIterator[None]:
    """What is awaited inside may take so long, and is given up then; None: as long as it takes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """If a cancellation has been lost in what is awaited inside, it is raised at the end.

    It is lost when it meets the result that is waited for, in `asyncio.wait_for` of Python 3.11. For an answer of
    another process that is often so, as the loop then sees both at once.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    yield
    if task.cancelling() > before:
        raise asyncio.CancelledError


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel those that there are, and wait until they have ended, whatever comes of them; also if the caller is
    cancelled meanwhile.

    One that goes on is cancelled again: a cancellation is lost when it meets the result that is waited for, in
    `asyncio.wait_for` of Python 3.11 and in libraries that catch it.
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
