"""Judges the engine's health by failed finals and by deaths of the inference process.

No I/O; time is an argument, in seconds of one monotonic clock.
"""

from __future__ import annotations

FAILURES = 3
"""How many utterances in a row without a text are the engine's fault and not that of an utterance."""
HOLD_S = 60.0
"""How long failures count after the last answer: only another call can show whether they last."""
BACKOFF_S = 0.5
BACKOFF_MAX_S = 30.0
FAILED_AFTER = 3
"""Deaths in a row, without an answer or a good while of life in between, after which the engine counts as failed. A
death over an utterance counts half: an utterance may cost two, three in a row are more likely the engine's fault."""
GOOD_LIFE_S = 10.0


class FinalOutcomes:
    """Counts the finals that failed in a row."""

    def __init__(self) -> None:
        self._failures = 0
        self._last_s = 0.0
        self._error = ""

    def record(self, error: str | None, now: float) -> None:
        """A final has arrived, with its text or with an error."""
        self._failures = 0 if error is None else self._failures + 1
        self._last_s, self._error = now, error or ""

    def trouble(self, now: float) -> str | None:
        """Why the next call is likely to get no text, or None."""
        if self._failures < FAILURES or now - self._last_s >= HOLD_S:
            return None
        return f"the last {self._failures} utterances were not recognised: {self._error}"


class RestartPolicy:
    """Counts the deaths of the inference process in a row, and says when to start the next one."""

    def __init__(self) -> None:
        self.deaths = 0.0

    def on_retirement(self) -> None:
        """The process ended because it was asked to."""
        self.deaths = 0.0

    def on_death(self, *, answered: bool, lived_s: float, blamed: bool, hopeless: bool) -> None:
        """The process ended by itself, or was killed because it hung.

        Args:
            answered: it had answered a request.
            lived_s: how long it had been ready.
            blamed: it was working on utterances that are still open.
            hopeless: the next process will not get ready either.
        """
        before = 0.0 if answered or lived_s >= GOOD_LIFE_S else self.deaths
        self.deaths = before + (0.5 if blamed else 1.0)
        if hopeless:
            self.deaths = max(self.deaths, FAILED_AFTER)

    @property
    def failed(self) -> bool:
        """Whether the engine counts as failed; it is still tried again."""
        return self.deaths >= FAILED_AFTER

    @property
    def backoff_s(self) -> float:
        """How long to wait before the next start. There is no wait after the first death: a caller is waiting."""
        return 0.0 if self.deaths <= 1 else min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (self.deaths - 2))
