"""Warnings about peers in the log, at most one per source, problem and minute; counters count every case."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from config.log.rate_limit import LogRateLimit

log = structlog.get_logger()


class Notices:
    """Logs warnings about peers at a limited rate, so that no peer can fill the log."""

    def __init__(self, *, period_s: float = 60.0, max_sources: int = 1024) -> None:
        self._once = LogRateLimit(period_s, max_keys=max_sources)

    def warn(self, source: str, problem: str, now: float, detail: str = "", *, call_id: str | None = None) -> bool:
        """Returns whether it was logged. Beyond `max_sources` nothing is logged until the minute has passed."""
        if self._once.due((source, problem), now) is None:
            return False
        call = {"call_id": call_id} if call_id is not None else {}
        log.warning(problem, source=source, detail=detail[:200], **call)
        return True

    def of(self, source: str, call_id: Callable[[], str | None]) -> Callable[[str, str], None]:
        """The `on_problem(problem, detail)` of a session from `source`; `call_id` returns None before the call."""

        def on_problem(problem: str, detail: str) -> None:
            self.warn(source, problem, asyncio.get_running_loop().time(), detail, call_id=call_id())

        return on_problem
