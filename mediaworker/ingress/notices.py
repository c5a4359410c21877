"""Trouble that peers make, logged once per source and minute; the counters count all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from config.log_rate_limit import LogRateLimit

log = structlog.get_logger()


class Notices:
    """A log that one talkative peer cannot fill."""

    def __init__(self, *, period_s: float = 60.0, max_sources: int = 1024) -> None:
        self._once = LogRateLimit(period_s, max_keys=max_sources)

    def warn(self, source: str, problem: str, now: float, detail: str = "", *, call_id: str | None = None) -> bool:
        """Whether it was logged. With more sources than `max_sources` the rest of the minute is silent."""
        if self._once.due((source, problem), now) is None:
            return False
        call = {"call_id": call_id} if call_id is not None else {}
        log.warning(problem, source=source, detail=detail[:200], **call)
        return True

    def of(self, source: str, call_id: Callable[[], str | None]) -> Callable[[str, str], None]:
        """What a session from `source` calls as `on_problem(problem, detail)`; `call_id` gives None before the call."""

        def on_problem(problem: str, detail: str) -> None:
            self.warn(source, problem, asyncio.get_running_loop().time(), detail, call_id=call_id())

        return on_problem
