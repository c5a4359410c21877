"""What every ingress counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class IngressCounters:
    """Base of the counters of an ingress, which all its sessions share. Plain integers for `/metrics`."""

    refused: Counter[str] = field(default_factory=Counter)
    """Upgrades, connections and sessions that did not become a call (or a leg), by reason.

    Each ingress gives those of these counters that `/metrics` shows a help text in words of its own.
    """
    started: int = 0
    """Sessions that became a call, or a leg of one."""
    silent: int = 0
    """Sessions that were ended because nothing came."""
    malformed: int = 0
    unknown: int = 0
    unexpected: int = 0
    """Messages in the wrong state."""
    implausible: int = 0
    """Digits that came faster than any phone sends them."""

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1
