"""What every ingress counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class IngressCounters:
    """Base of the counters of an ingress, which all its sessions share. Plain integers for `/metrics`."""

    refused: dict[str, int] = field(default_factory=dict)
    """Upgrades, connections and sessions that did not become a call (or a leg), by reason."""

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
