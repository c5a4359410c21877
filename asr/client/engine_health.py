"""Judges the engine's health by failed finals and by deaths of its servers.

No I/O; time is an argument, in seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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
RECONNECT_S = 0.05
RECONNECT_MAX_S = 3.0
AWAY_S = 30.0
"""So long may a server be away that has been there, or is not there yet, before it counts as failed."""


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


@dataclass(frozen=True, slots=True)
class Death:
    """How an engine server's life ended that nobody had asked to end."""

    answered: bool
    """It had answered a request."""
    ready_s: float | None
    """When it had become ready."""
    now_s: float
    blamed: bool
    """It was working on utterances that are still open."""
    hung: bool
    unusable: bool
    """It has said that the next one will not get ready either."""


class RestartPolicy(Protocol):
    """When to begin again after a death, and when a server counts as failed. It is still tried again then."""

    @property
    def failed(self) -> str:
        """Why it counts as failed, behind the reason of the last death; empty: it does not."""

    @property
    def backoff_s(self) -> float:
        """How long to wait before it is begun again."""

    def on_death(self, death: Death) -> None: ...

    def on_retirement(self) -> None:
        """It ended because it was asked to."""


class ProcessRestarts:
    """Of a process of this machine: counts its deaths in a row."""

    def __init__(self) -> None:
        self.deaths = 0.0

    def on_retirement(self) -> None:
        self.deaths = 0.0

    def on_death(self, death: Death) -> None:
        lived_s = death.now_s - death.ready_s if death.ready_s is not None else 0.0
        before = 0.0 if death.answered or lived_s >= GOOD_LIFE_S else self.deaths
        self.deaths = before + (0.5 if death.blamed else 1.0)
        # Callers have waited long enough for a process that hangs while it starts.
        if death.unusable or (death.hung and death.ready_s is None):
            self.deaths = max(self.deaths, FAILED_AFTER)

    @property
    def failed(self) -> str:
        return f"{self.deaths:g} times in a row" if self.deaths >= FAILED_AFTER else ""

    @property
    def backoff_s(self) -> float:
        """There is no wait after the first death: a caller is waiting."""
        return 0.0 if self.deaths <= 1 else min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (self.deaths - 2))


class Reconnects:
    """Of a server elsewhere: it may be restarted, or cut off for a while, and callers can wait for that."""

    def __init__(self) -> None:
        self._attempts = 0
        self._first_s: float | None = None
        """When the first death was since it was ready."""
        self._failed = ""

    def on_retirement(self) -> None:
        self._attempts, self._first_s, self._failed = 0, None, ""

    def on_death(self, death: Death) -> None:
        if death.ready_s is not None:
            self.on_retirement()
        self._attempts += 1
        self._first_s = death.now_s if self._first_s is None else self._first_s
        away_s = death.now_s - self._first_s
        self._failed = f"for {away_s:.0f} s" if death.unusable or away_s >= AWAY_S else ""

    @property
    def failed(self) -> str:
        return self._failed

    @property
    def backoff_s(self) -> float:
        return min(RECONNECT_MAX_S, RECONNECT_S * 2.0 ** (self._attempts - 1)) if self._attempts else 0.0
