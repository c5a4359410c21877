"""What every ingress counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class IngressCounters:
    """Base of the counters of an ingress, which all its sessions share. Plain integers for `/metrics`."""

    refused: Counter[str] = field(default_factory=Counter)
    """Upgrades, connections and sessions that did not become a call (or a leg), by reason.

    Each ingress gives it a help text in words of its own.
    """

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1
