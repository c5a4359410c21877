"""Failed authentications: they are counted, logged once per source and minute, and repeated guesses are answered late.

Only refusals are delayed, so a correct key from the same address (a proxy's, for instance) never waits. No I/O:
`record` returns how long the answer is to be held back.
"""

from __future__ import annotations

from typing import Literal

from config.addresses import peer_key
from config.metrics.registry import MetricsRegistry
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
"""Guesses that one source may make at once."""
GUESSES_PER_S: dict[str, float] = {"unknown_key": 1.0, "signature": 50.0}
"""Guesses answered per second beyond that. Nobody guesses a MAC of 160 bits: for signatures it only bounds the work."""
MAX_DELAY_S = 4.0
"""The longest delay of an answer, which is less than the time a media WebSocket has for its handshake."""
MAX_SOURCES = 4096
"""How many sources are remembered. When all of them are busy, further sources share one entry."""


class AuthFailures:
    """The failures of all ports of a worker; `counts` has the totals by reason."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(REASONS, 0)
        self._notices = Notices()
        self._sources: dict[tuple[str, str], tuple[float, float]] = {}
        """(source, reason) → its guesses that still count, and when they were counted."""

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        """`limits`: by port; `guard`: of the HTTP port; `auth_failures`: by reason."""
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
        """Returns for how many seconds to hold the answer back. `logged`: the caller writes its own log line."""
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
