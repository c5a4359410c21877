"""The hold state of a call: which legs are on hold, and how long all were at the same time. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Set


class HoldState:
    """The legs on hold. The owner calls `update` after each change and whenever a leg joins."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._left: set[str] = set()
        """Legs on hold whose stream has been removed."""
        self._since_s: float | None = None
        """When the last of the legs was put on hold; None while at least one is not."""
        self._total_s = 0.0

    def hold(self, legs: Set[str]) -> bool:
        """Returns whether anything changed. A leg that had left is on hold with its stream again."""
        if legs <= self._held - self._left:
            return False
        self._held |= legs
        self._left -= legs
        return True

    def resume(self, legs: Set[str]) -> bool:
        """Returns whether any of them was on hold."""
        if not legs & self._held:
            return False
        self._held -= legs
        self._left -= legs
        return True

    def leave(self, leg: str) -> None:
        self._held.add(leg)
        self._left.add(leg)

    def has_left(self, leg: str) -> bool:
        return leg in self._left

    def update(self, legs: Set[str], now: float) -> None:
        """Start or stop counting hold time. `legs` are all legs of the call."""
        everyone = bool(self._held) and self._held >= legs
        if everyone and self._since_s is None:
            self._since_s = now
        elif not everyone:
            self.stop(now)

    def stop(self, now: float) -> None:
        """Stop counting hold time."""
        self._total_s, self._since_s = self.total_s(now), None

    def total_s(self, now: float) -> float:
        return self._total_s + (0.0 if self._since_s is None else now - self._since_s)
