"""Whether the engine's last answers were any good. No I/O; time is an argument, in seconds of one monotonic clock."""

from __future__ import annotations

FAILURES = 3
"""So many utterances in a row without a text are the engine's fault and not that of one utterance."""
HOLD_S = 60.0
"""After so long without an answer the failures no longer count: only another call can show whether they go on."""


class FinalOutcomes:
    """Keeps count of the finals that failed, one after the other."""

    def __init__(self) -> None:
        self._failures = 0
        self._last_s = 0.0
        self._error = ""

    def record(self, error: str | None, now: float) -> None:
        """A final has come: with its text, or with the reason why there is none."""
        self._failures = 0 if error is None else self._failures + 1
        self._last_s, self._error = now, error or ""

    def trouble(self, now: float) -> str | None:
        """Why the next call is likely to get no text either; None: nothing says so."""
        if self._failures < FAILURES or now - self._last_s >= HOLD_S:
            return None
        return f"the last {self._failures} utterances were not recognised: {self._error}"
