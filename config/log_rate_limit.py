"""Keeps one talkative peer from filling the log. No I/O; the time is an argument."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class LogRateLimit:
    """Lets a message about a key through once per period, and says how many were held back since."""

    def __init__(self, period_s: float = 60.0, *, max_keys: int = 1024) -> None:
        self._period_s, self._max_keys = period_s, max_keys
        self._last: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def due(self, key: Hashable, now: float) -> int | None:
        """How many were held back since the last one that was due; None when this one is to be held back too."""
        last_s, held = self._last.get(key, (-self._period_s, 0))
        if now - last_s < self._period_s:
            self._last[key] = (last_s, held + 1)
            return None
        while self._last and now - next(iter(self._last.values()))[0] >= self._period_s:
            self._last.popitem(last=False)
        if len(self._last) >= self._max_keys and key not in self._last:
            return None  # sources are easily made up: so many lines in a period are enough
        self._last[key] = (now, 0)
        self._last.move_to_end(key)
        return held
