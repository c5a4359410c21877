"""Decides whether the clock can be trusted before records are erased for their age. No I/O.

A clock may be wrong for a while: without its battery, before it is synchronised, or when it is set by hand. If it were
a month ahead for a minute, retention would erase a month of calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

HELD_S = 3600.0
"""The time without a step after which the clock is trusted."""
STEP_S = 60.0
"""The shortest step, measured against the monotonic clock. Programs that slew the clock change it by less at once."""
log = structlog.get_logger()


class SureClock:
    """Trusts the clock once it has run for an hour without a step, counted from the start or from its latest step. It
    trusts the clock at once if the record that was stored last, before this start, is less than an hour from it.

    Args:
        clock: returns Unix time.
        steady: returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float], steady: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._steady = clock, steady
        self._offset_s = clock() - steady()
        self._since_s = steady()
        self._agreed = False

    def agree(self, latest_s: float | None) -> None:
        """Called at the start. `latest_s`: the Unix time of the record that was stored last before it. None: there is
        none, so every record that this clock finds old will have been stored by it."""
        self._agreed = self._held() and (latest_s is None or abs(self._clock() - latest_s) < HELD_S)

    def is_sure(self) -> bool:
        """Return whether the clock can be trusted now."""
        return self._held() and (self._agreed or self._steady() - self._since_s >= HELD_S)

    def _held(self) -> bool:
        """Return whether the clock has not stepped since the last call. After a step the hour begins again."""
        offset_s = self._clock() - self._steady()
        step_s = offset_s - self._offset_s
        self._offset_s = offset_s
        if abs(step_s) > STEP_S:
            self._since_s, self._agreed = self._steady(), False
            log.warning(
                "the clock was set: nothing is erased by age until it has held for an hour", seconds=round(step_s)
            )
            return False
        return True
