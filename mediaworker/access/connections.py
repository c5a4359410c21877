"""The connection limits of a port: in total, and from one peer. No I/O.

A connection beyond the limit is refused. Up to REFUSED_MAX of them may send their request first, because many clients
lose a response that comes before the request, or with a reset while they still send. All others are closed at once: a
flood then costs one accept and one close each, and leaves descriptors for calls.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Mapping

from config.metrics.registry import MetricsRegistry
from config.network.addresses import peer_key

RESERVED_FILES = 256
"""Descriptors reserved for the store, the inference process, logs and files, in addition to one per call."""

REFUSED_MAX = 64
"""The most connections beyond the limit whose requests one port reads at a time; at most half are from one peer."""


class ConnectionLimit:
    """Counts open connections, and in `refused` the refused ones by reason (`total` or `peer`)."""

    def __init__(self, total: int, per_peer: int) -> None:
        self.refused = {"total": 0, "peer": 0}
        self.open = 0
        self._total, self._per_peer = total, per_peer
        self._by_peer: Counter[str] = Counter()

    def lower(self, total: int) -> None:
        """Lower the total below the configured one; then no peer gets more than half of it."""
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
    """Register the gauges and counters of the limits, which are keyed by their port."""
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
    """The limit for the refused connections whose requests a port still reads."""
    return ConnectionLimit(REFUSED_MAX, REFUSED_MAX // 2)


def affordable(calls: int, *, files: int | None = None) -> int:
    """The number of TCP connections that each of three ports may hold if every call needs a descriptor as well."""
    if files is None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(16, (files - RESERVED_FILES - calls) // 3)


def raise_open_files() -> None:
    """Raise the soft limit of open files, usually 1024: each connection and each call needs a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
