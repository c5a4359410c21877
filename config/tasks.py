"""The end of background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 5.0


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them, and wait until they have ended, whatever comes of them.

    One that goes on is cancelled again: a cancellation is lost when it meets the result that is waited for, in
    `asyncio.wait_for` of Python 3.11 and in libraries that catch it.
    """
    ending = tuple(tasks)
    left = {task for task in ending if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    await asyncio.gather(*ending, return_exceptions=True)  # nobody else asks how they have ended
