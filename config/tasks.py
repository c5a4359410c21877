"""The end of background tasks."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 5.0


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
