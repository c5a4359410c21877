"""The end of tasks: cancellations that are not lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

AGAIN_S = 5.0


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
