"""Whether an inference process that is needed still lives: it is looked at from time to time, and asked.

Looks are counted, not seconds: after a machine was suspended the process gets its time again. No I/O and no clock.
"""

from __future__ import annotations

from enum import Enum, auto

LOOKS = 4
"""Within the time it has for an answer."""


class WatchdogVerdict(Enum):
    FINE = auto()
    ASK = auto()
    """Ask it for a sign of life."""
    HUNG = auto()


class Patience:
    """One life of the process: look every `period_s`.

    Args:
        hang_s: without a sign of life for so long it hangs.
        start_s: so long it may take to get ready.
    """

    def __init__(self, *, hang_s: float, start_s: float) -> None:
        self.period_s = min(hang_s, start_s) / LOOKS
        self._hang_s, self._start_s = hang_s, start_s
        self._seen, self._asked, self._silent_s = 0, True, 0.0

    def look(self, signs: int, *, ready: bool, needed: bool) -> WatchdogVerdict:
        """`signs`: what it has said so far, as a number that grows. One that is not ready is always needed."""
        self._silent_s = self._silent_s + self.period_s if self._asked and signs == self._seen else 0.0
        self._seen, self._asked = signs, needed or not ready
        if self._silent_s >= (self._hang_s if ready else self._start_s):
            return WatchdogVerdict.HUNG
        return WatchdogVerdict.ASK if ready and needed and not self._silent_s else WatchdogVerdict.FINE

    def why(self, *, ready: bool) -> str:
        """The reason for the verdict HUNG."""
        what = f"did not answer for {self._hang_s:g} s" if ready else f"was not ready within {self._start_s:g} s"
        return f"the inference process {what}"
