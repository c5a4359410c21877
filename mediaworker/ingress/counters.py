"""The counters that all ingresses have in common."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class IngressCounters:
    """The base of an ingress's counters, which all its sessions share; they are exported in `/metrics`."""

    refused: Counter[str] = field(default_factory=Counter)
    """Upgrades, connections and sessions that did not become a call (or a leg), by reason.

    Each ingress overrides the counters that `/metrics` shows, with its own help texts.
    """
    started: int = 0
    """Sessions that became a call, or a leg of one."""
    silent: int = 0
    """Sessions that were ended because nothing arrived."""
    malformed: int = 0
    unknown: int = 0
    unexpected: int = 0
    """Messages that arrived in the wrong state."""
    implausible: int = 0
    """Digits that arrived faster than any phone sends them."""

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1
