"""Checks periodically whether an inference process that is needed still lives, and pings it.

It counts checks, not seconds, so the process gets its full time after the machine was suspended. No I/O and no clock.
"""

from __future__ import annotations

from enum import Enum, auto

CHECKS = 4
"""How many checks are made within the time that the process has for an answer."""


class WatchdogVerdict(Enum):
    FINE = auto()
    ASK = auto()
    """Ask it for a sign of life."""
    HUNG = auto()


class Watchdog:
    """Watches one life of the process: check every `period_s`.

    Args:
        hang_s: how long a process may give no sign of life before it counts as hung.
        start_s: how long it may take to get ready.
    """

    def __init__(self, *, hang_s: float, start_s: float) -> None:
        self.period_s = min(hang_s, start_s) / CHECKS
        self._hang_s, self._start_s = hang_s, start_s
        self._seen, self._asked, self._silent_s = 0, True, 0.0

    def check(self, signs: int, *, ready: bool, needed: bool) -> WatchdogVerdict:
        """`signs`: how many messages it has sent so far. A process that is not ready is always needed."""
        self._silent_s = self._silent_s + self.period_s if self._asked and signs == self._seen else 0.0
        self._seen, self._asked = signs, needed or not ready
        if self._silent_s >= (self._hang_s if ready else self._start_s):
            return WatchdogVerdict.HUNG
        return WatchdogVerdict.ASK if ready and needed and not self._silent_s else WatchdogVerdict.FINE

    def reason(self, *, ready: bool) -> str:
        """The reason for the verdict HUNG."""
        return f"did not answer for {self._hang_s:g} s" if ready else f"was not ready within {self._start_s:g} s"
