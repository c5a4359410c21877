"""Whether the clock may be believed when it says that something is old enough to be erased.

A clock can be wrong for a while: without its battery, before it is synchronised, or set by hand. One that is a month
ahead for a minute must not erase a month of calls. No I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

HELD_S = 3600.0
"""A clock that has run like a clock for so long is believed."""
STEP_S = 60.0
"""More than this, compared with the machine's steady clock, is a step: whoever slews a clock takes less at once."""
log = structlog.get_logger()


class SureClock:
    """Believed once it has held for an hour since the start and since its latest step, or at once if what was stored
    last, before this start, agrees with it.

    Args:
        clock: Unix time.
        steady: seconds since some moment, which nobody sets.
    """

    def __init__(self, clock: Callable[[], float], steady: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._steady = clock, steady
        self._offset_s = clock() - steady()
        self._since_s = steady()
        self._agreed = False

    def agree(self, latest_s: float | None) -> None:
        """Called at the start. `latest_s`: the Unix time of what was stored last before it; None: nothing was, so
        whatever will be old then has been stored by this clock."""
        self._agreed = self._held() and (latest_s is None or abs(self._clock() - latest_s) < HELD_S)

    def is_sure(self) -> bool:
        return self._held() and (self._agreed or self._steady() - self._since_s >= HELD_S)

    def _held(self) -> bool:
        """Without a step since the last look. Behind one everything begins anew."""
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
