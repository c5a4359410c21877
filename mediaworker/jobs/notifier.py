"""Whoever asked for it is told of the end of a job, by its webhook, until that succeeds or is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from mediaworker.jobs.record import Job
from mediaworker.jobs.store import Book
from mediaworker.webhooks.jobs import Webhooks

AT_ONCE = 64
"""Webhooks under way: a host that does not answer holds each up for seconds."""
log = structlog.get_logger()


class Telling:
    """`changed` is called when there may be more to do."""

    def __init__(self, book: Book, webhooks: Webhooks, changed: Callable[[], None]) -> None:
        self._book, self._webhooks, self._changed = book, webhooks, changed
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def go_on(self, now_s: float) -> float | None:
        """Begin those that are due; Unix time at which the next one is."""
        waiting = [(job.webhook.next_s, job) for job in self._book.open.values() if job.webhook and not job.active]
        due = sorted((at, job.id) for at, job in waiting if at <= now_s and job.id not in self._tasks)
        for _, job_id in due[: AT_ONCE - len(self._tasks)]:
            work = self._tell(self._book.open[job_id])
            self._tasks[job_id] = asyncio.get_running_loop().create_task(work, name=f"webhook {job_id}")
        return min((at for at, _ in waiting if at > now_s), default=None)

    async def forget(self, job_id: str) -> None:
        """Nobody is told of it any more."""
        if (task := self._tasks.get(job_id)) is not None:
            await _ended([task])

    async def stop(self) -> None:
        await _ended(list(self._tasks.values()))

    async def _tell(self, job: Job) -> None:
        try:
            webhook = await self._webhooks.send(job, self._book.clock())
            if webhook.error:
                log.warning("webhook", job=job.id, state=webhook.state, attempts=webhook.attempts, error=webhook.error)
            await self._book.remember(replace(job, webhook=webhook))
            if webhook.state != "waiting":
                self._book.open.pop(job.id, None)
        finally:
            self._tasks.pop(job.id, None)
            asyncio.get_running_loop().call_soon(self._changed)


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
