"""Judges the engine's health by failed finals and by deaths of its servers.

No I/O; time is an argument, in seconds of one monotonic clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from asr.client.link import EngineLink

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


class RestartPolicy(ABC):
    """When to begin again after a death, and when a server counts as failed. It is still tried again then."""

    def __init__(self) -> None:
        self.on_retirement()

    def on_retirement(self) -> None:
        """It ended because it was asked to, or begins anew."""
        self.deaths = 0.0
        """In a row."""
        self.failed = ""
        """Why it counts as failed, behind the reason of the last death; empty: it does not."""
        self.backoff_s = 0.0
        """How long to wait before it is begun again."""

    @abstractmethod
    def on_death(self, link: EngineLink, now_s: float, *, blamed: bool) -> None:
        """Its life of this link has ended, and nobody had asked it to. `blamed`: it was working on utterances that are
        still open."""


class ProcessRestarts(RestartPolicy):
    """The policy for a process of this machine, of which the deaths in a row count."""

    def on_death(self, link: EngineLink, now_s: float, *, blamed: bool) -> None:
        lived_s = now_s - link.ready_s if link.ready_s is not None else 0.0
        before = 0.0 if link.answered or lived_s >= GOOD_LIFE_S else self.deaths
        self.deaths = before + (0.5 if blamed else 1.0)
        # Callers have waited long enough for a process that hangs while it starts.
        if link.unusable or (link.hung and link.ready_s is None):
            self.deaths = max(self.deaths, FAILED_AFTER)
        self.failed = f"{self.deaths:g} times in a row" if self.deaths >= FAILED_AFTER else ""
        # There is no wait after the first death: a caller is waiting.
        self.backoff_s = 0.0 if self.deaths <= 1 else _backoff_s(BACKOFF_S, BACKOFF_MAX_S, self.deaths - 2)


class Reconnects(RestartPolicy):
    """The policy for a server elsewhere: it may be restarted, or cut off for a while, and callers can wait for that."""

    def on_retirement(self) -> None:
        super().on_retirement()
        self._first_s: float | None = None
        """When the first death was since it was ready."""

    def on_death(self, link: EngineLink, now_s: float, *, blamed: bool) -> None:
        if link.ready_s is not None:
            self.on_retirement()
        self.deaths += 1
        self._first_s = now_s if self._first_s is None else self._first_s
        away_s = now_s - self._first_s
        self.failed = f"for {away_s:.0f} s" if link.unusable or away_s >= AWAY_S else ""
        self.backoff_s = _backoff_s(RECONNECT_S, RECONNECT_MAX_S, self.deaths - 1)


def _backoff_s(first_s: float, longest_s: float, doublings: float) -> float:
    """After a thousand attempts the power alone would be more than a float holds."""
    return float(min(longest_s, first_s * 2.0 ** min(doublings, 32)))
