"""A rate limit for log lines, so that a single peer cannot fill the log. No I/O; the time is an argument."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class LogRateLimit:
    """Passes one message per key and period, and counts the suppressed ones."""

    def __init__(self, period_s: float = 60.0, *, max_keys: int = 1024) -> None:
        self._period_s, self._max_keys = period_s, max_keys
        self._last: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def due(self, key: Hashable, now: float) -> int | None:
        """The number of messages suppressed since the last one that passed; None if this one is suppressed too."""
        last_s, held = self._last.get(key, (-self._period_s, 0))
        if now - last_s < self._period_s:
            self._last[key] = (last_s, held + 1)
            return None
        while self._last and now - next(iter(self._last.values()))[0] >= self._period_s:
            self._last.popitem(last=False)
        if len(self._last) >= self._max_keys and key not in self._last:
            return None  # sources can be forged: this many lines per period are enough
        self._last[key] = (now, 0)
        self._last.move_to_end(key)
        return held
