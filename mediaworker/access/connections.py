"""How many connections a port holds: in total, and from one peer. No I/O.

A connection beyond the limit is refused. Some are heard out first, because an answer that comes before the request, or
with a reset while the peer still sends, is lost on many clients. The others are closed at once: a flood costs an accept
and a close each, and leaves descriptors for calls.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Mapping

from config.addresses import peer_key
from config.metrics.registry import MetricsRegistry

RESERVED_FILES = 256
"""Descriptors kept for the store, the inference process, logs and files, beside one per call."""

REFUSED_MAX = 64
"""Connections beyond the limit that one port hears out at a time, half of them of one peer."""


class ConnectionLimit:
    """Counts open connections, and in `refused` the refused ones by reason (`total` or `peer`)."""

    def __init__(self, total: int, per_peer: int) -> None:
        self.refused = {"total": 0, "peer": 0}
        self.open = 0
        self._total, self._per_peer = total, per_peer
        self._by_peer: Counter[str] = Counter()

    def lower(self, total: int) -> None:
        """Lower the total below the configured one; no peer then takes more than half."""
        if total < self._total:
            self._total, self._per_peer = total, min(self._per_peer, max(1, total // 2))

    def enter(self, peer: str) -> str:
        """Counts the connection and returns "", or returns why it is refused."""
        key = peer_key(peer)
        reason = "total" if self.open >= self._total else "peer" if self._by_peer[key] >= self._per_peer else ""
        if reason:
            self.refused[reason] += 1
            if not self._by_peer[key]:
                del self._by_peer[key]
            return reason
        self.open += 1
        self._by_peer[key] += 1
        return ""

    def leave(self, peer: str) -> None:
        key = peer_key(peer)
        self.open -= 1
        self._by_peer[key] -= 1
        if not self._by_peer[key]:
            del self._by_peer[key]


def add_metrics(metrics: MetricsRegistry, limits: Mapping[str, ConnectionLimit]) -> None:
    """`limits`: by port."""
    """`limits`: by port; `guard`: of the HTTP port; `auth_failures`: by reason."""
    metrics.gauge(
        "connections",
        "Shows how many TCP connections of a port are open.",
        lambda: {port: limit.open for port, limit in limits.items()},
        "port",
    )
    metrics.counter(
        "connections_refused",
        (
"Counts connections refused because they exceeded the limit of a port (total) or of "
"an address (peer)."
),
        lambda: {(port, why): count for port, limit in limits.items() for why, count in limit.refused.items()},
        "port", "reason",
    )  # fmt: skip


def refused_places() -> ConnectionLimit:
    """The places of a port for connections beyond its limit that are heard out."""
    return ConnectionLimit(REFUSED_MAX, REFUSED_MAX // 2)


def affordable(calls: int, *, files: int | None = None) -> int:
    """How many TCP connections each of three ports may hold when every call has a descriptor as well."""
    if files is None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(16, (files - RESERVED_FILES - calls) // 3)


def raise_open_files() -> None:
    """Each connection and each call needs a descriptor, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
