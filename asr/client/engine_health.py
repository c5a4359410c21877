"""Judges the engine's health by failed finals and by deaths of its servers, and sets the delay before a restart.

No I/O; time is an argument, in seconds of one monotonic clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from asr.client.link import EngineLink

FAILURES = 3
"""After this many failed utterances in a row, the engine is at fault and not one of the utterances."""
HOLD_S = 60.0
"""How long failures count after the latest answer. A worker that stayed unready would get no further call, and only
another call can show whether the engine works again."""
BACKOFF_S = 0.5
"""The delay after the second death in a row. Each further death doubles it, up to `BACKOFF_MAX_S`."""
BACKOFF_MAX_S = 30.0
FAILED_AFTER = 3
"""After this many deaths in a row the engine counts as failed. An answer or a life of `GOOD_LIFE_S` ends the row.
A death over an utterance counts half: one utterance may kill two processes before it is given up, while more deaths
in a row are more likely the engine's fault."""
GOOD_LIFE_S = 10.0
RECONNECT_S = 0.05
"""The delay before the first reconnect. Each further attempt doubles it, up to `RECONNECT_MAX_S`."""
RECONNECT_MAX_S = 3.0
AWAY_S = 30.0
"""How long a server may be unreachable before it counts as failed, whether or not it was reached before."""


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
    """Decides when a server is restarted after a death, and when it counts as failed. Failed ones are restarted too."""

    def __init__(self) -> None:
        self.on_retirement()

    def on_retirement(self) -> None:
        """Forget all deaths: the server ended on request, or has been ready since."""
        self.deaths = 0.0
        """The number of deaths in a row; some count half."""
        self.failed = ""
        """How often or how long the server has failed, a phrase after the reason of the last death. Empty while the
        server does not count as failed."""
        self.backoff_s = 0.0
        """The delay before the next start."""

    @abstractmethod
    def on_death(self, link: EngineLink, now_s: float, *, blamed: bool) -> None:
        """Count a death: the server's life over this link has ended without a request. `blamed`: the server was working
        on utterances that are still open."""


class ProcessRestarts(RestartPolicy):
    """The policy for a process of this machine. It counts the deaths in a row."""

    def on_death(self, link: EngineLink, now_s: float, *, blamed: bool) -> None:
        lived_s = now_s - link.ready_s if link.ready_s is not None else 0.0
        before = 0.0 if link.answered or lived_s >= GOOD_LIFE_S else self.deaths
        self.deaths = before + (0.5 if blamed else 1.0)
        # A process that hangs while it starts has already used up all of `start_s`, for which callers waited.
        if link.unusable or (link.hung and link.ready_s is None):
            self.deaths = max(self.deaths, FAILED_AFTER)
        self.failed = f"{self.deaths:g} times in a row" if self.deaths >= FAILED_AFTER else ""
        # There is no wait after the first death: a caller is waiting.
        self.backoff_s = 0.0 if self.deaths <= 1 else _backoff_s(BACKOFF_S, BACKOFF_MAX_S, self.deaths - 2)


class Reconnects(RestartPolicy):
    """The policy for a server on another machine. It may restart or be unreachable for a while, and callers can wait
    for that, so time counts and not the number of attempts."""

    def on_retirement(self) -> None:
        super().on_retirement()
        self._first_s: float | None = None
        """When the server first died or was not reached, since it was last ready."""

    def on_death(self, link: EngineLink, now_s: float, *, blamed: bool) -> None:
        if link.ready_s is not None:
            self.on_retirement()
        self.deaths += 1
        self._first_s = now_s if self._first_s is None else self._first_s
        away_s = now_s - self._first_s
        self.failed = f"for {away_s:.0f} s" if link.unusable or away_s >= AWAY_S else ""
        self.backoff_s = _backoff_s(RECONNECT_S, RECONNECT_MAX_S, self.deaths - 1)


def _backoff_s(first_s: float, longest_s: float, doublings: float) -> float:
    """The delay after this many doublings. They are capped, because a float cannot hold 2 to the power of 1024."""
    return float(min(longest_s, first_s * 2.0 ** min(doublings, 32)))
