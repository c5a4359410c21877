"""Trouble that peers make, said once per source and minute; the counters have it in full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

log = structlog.get_logger()


class Notices:
    """A log that one talkative peer cannot fill."""

    def __init__(self, *, period_s: float = 60.0, max_sources: int = 1024) -> None:
        self._period_s, self._max = period_s, max_sources
        self._next: dict[tuple[str, str], float] = {}

    def warn(self, source: str, problem: str, now: float, detail: str = "", *, call_id: str | None = None) -> bool:
        """Whether it was said. With more sources than `max_sources` the rest of the minute is silent."""
        key = (source, problem)
        if now < self._next.get(key, now):
            return False
        if len(self._next) >= self._max:
            self._next = {k: due for k, due in self._next.items() if due > now}
            if len(self._next) >= self._max:
                return False
        self._next[key] = now + self._period_s
        call = {"call_id": call_id} if call_id is not None else {}
        log.warning(problem, source=source, detail=detail[:200], **call)
        return True

    def of(self, source: str, call_id: Callable[[], str | None]) -> Callable[[str, str], None]:
        """What a session from `source` calls as `on_problem(problem, detail)`; `call_id` gives None before the call."""

        def on_problem(problem: str, detail: str) -> None:
            self.warn(source, problem, asyncio.get_running_loop().time(), detail, call_id=call_id())

        return on_problem
