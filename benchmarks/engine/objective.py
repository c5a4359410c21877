"""How long answers may take."""

from __future__ import annotations

from dataclasses import dataclass

from asr.scheduling.request import Lane

PERCENT = 99
"""Of the requests of each live lane that must hold."""


@dataclass(frozen=True, slots=True)
class Objective:
    final_ms: float = 150.0
    partial_ms: float = 300.0

    def of_s(self, lane: Lane) -> float:
        return (self.final_ms if lane is Lane.FINAL else self.partial_ms) / 1000
