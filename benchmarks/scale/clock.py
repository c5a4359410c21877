"""Virtual time: what is to happen, in its order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """What is due at the same time happens in the order in which it was asked for."""
        self._count += 1
        heappush(self._due, (time_s, self._count, action, arguments))

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay_s, action, *arguments)

    def every(self, period_s: float, action: Callable[[], None], *, first_s: float = 0.0) -> None:
        def again() -> None:
            action()
            self.after(period_s, again)

        self.after(first_s, again)

    def run(self, until_s: float) -> None:
        due = self._due
        while due and due[0][0] <= until_s:
            self.now, _, action, arguments = heappop(due)
            action(*arguments)
        self.now = until_s
