"""Failed authentications: they are counted, logged once per source and minute, and refused late if they repeat.

Only refusals are delayed, so a correct key from the same address (a proxy's, for instance) never waits. No I/O:
`record` returns how long the caller must hold the response back.
"""

from __future__ import annotations

from typing import Literal

from config.metrics.registry import MetricsRegistry
from config.network.addresses import peer_key
from mediaworker.access.notices import Notices

Reason = Literal["no_key", "unknown_key", "scope", "not_local", "signature", "call_token"]
REASONS: dict[Reason, str] = {
    "no_key": "no API key",
    "unknown_key": "unknown API key",
    "scope": "the key lacks the scope",
    "not_local": "no API keys are configured, and this is no program of the worker's user",
    "signature": "X-Twilio-Signature is missing or wrong",
    "call_token": "the call token is missing, wrong or used",
}
FREE = 20
"""The number of guesses that one source may make without a delay."""
GUESSES_PER_S: dict[str, float] = {"unknown_key": 1.0, "signature": 50.0}
"""The rate of responses beyond FREE. A MAC of 160 bits cannot be guessed: for signatures this only bounds the work."""
MAX_DELAY_S = 4.0
"""The longest delay of a response. It is shorter than the handshake timeout of a media WebSocket."""
MAX_SOURCES = 4096
"""The most sources that are remembered. If all of them have recent guesses, further sources share one entry."""


class AuthFailures:
    """The failures of all ports of a worker; `counts` has the totals by reason."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(REASONS, 0)
        self._notices = Notices()
        self._sources: dict[tuple[str, str], tuple[float, float]] = {}
        """(source, reason) → the level of a leaky bucket of guesses, and when it was computed."""

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        """Register the counter of failures by reason."""
        metrics.counter(
            "auth_failures",
            (
                "Counts requests and streams on the HTTP and media ports that were refused for lack "
                "of valid credentials, by reason."
            ),
            lambda: self.counts,
            "reason",
        )

    def record(self, reason: Reason, peer: str, path: str, now: float, *, logged: bool = False) -> float:
        """Count a failure; returns the delay of the response in seconds. `logged`: the caller logs it itself."""
        self.counts[reason] += 1
        if not logged:
            self._notices.warn(peer, "authentication failed", now, f"{path}: {REASONS[reason]}")
        rate = GUESSES_PER_S.get(reason)
        return 0.0 if rate is None else self._delay_s((peer_key(peer), reason), rate, now)

    def _delay_s(self, key: tuple[str, str], rate: float, now: float) -> float:
        if key not in self._sources and len(self._sources) >= MAX_SOURCES:
            self._sources = {k: v for k, v in self._sources.items() if self._level(k, now) > 0}
            if len(self._sources) >= MAX_SOURCES:
                key = ("", key[1])
        level = min(self._level(key, now) + 1, FREE + MAX_DELAY_S * rate)
        self._sources[key] = level, now
        return max(0.0, level - FREE) / rate

    def _level(self, key: tuple[str, str], now: float) -> float:
        level, at = self._sources.get(key, (0.0, now))
        return max(0.0, level - (now - at) * GUESSES_PER_S[key[1]])
