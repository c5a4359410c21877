"""The overload guard: it sheds partials, then refuses new calls, when the media tick cannot keep up.

Finals of calls in progress are never shed. The guard judges the lag of the tick, averaged over about two seconds, so
that one hiccup of the machine does not count as overload. No I/O and no clock.
"""

from __future__ import annotations

from enum import IntEnum

from config.metrics.registry import MetricsRegistry

HORIZON = 64
"""The number of ticks over which the lag is averaged exponentially: two seconds while ticks are on time."""
CALM = 0.5
"""The guard leaves a state when the lag has fallen below this fraction of the limit that led into it."""


class LoadState(IntEnum):
    NORMAL = 0
    SHEDDING = 1
    """No partials are requested; finals are."""
    FULL = 2
    """No partials are requested, and new calls are refused."""


SHED_S = 0.1
"""The mean lag of the media tick from which on no partials are requested."""
REFUSE_S = 0.5
"""The mean lag from which on new calls are refused, until it has fallen to half."""


class LoadGuard:
    """Derives `load` from the lag of each tick, which `lagged` records."""

    def __init__(self, *, shed_s: float = SHED_S, refuse_s: float = REFUSE_S) -> None:
        """`shed_s` and `refuse_s` are the mean lags from which on partials are shed and calls refused."""
        self.load = LoadState.NORMAL
        self.mean_s = 0.0
        self.shed_partials = 0
        self._limits_s = {LoadState.SHEDDING: shed_s, LoadState.FULL: max(shed_s, refuse_s)}

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.gauge(
            "load",
            "Shows the load: 0 is normal, 1 means that partials are shed, and 2 that calls are refused as well.",
            lambda: float(self.load),
        )
        metrics.counter(
            "load_shed_partials",
            "Counts partials that were not requested because of overload.",
            lambda: self.shed_partials,
        )

    def lagged(self, lag_s: float, share: float = 1.0) -> None:
        """Record that a tick, or this share of one, finished `lag_s` after it was due."""
        self.mean_s += (lag_s - self.mean_s) * share / HORIZON
        while self.load < LoadState.FULL and self.mean_s >= self._limits_s[LoadState(self.load + 1)]:
            self.load = LoadState(self.load + 1)
        while self.load > LoadState.NORMAL and self.mean_s < CALM * self._limits_s[self.load]:
            self.load = LoadState(self.load - 1)

    def calm(self) -> None:
        """Return to NORMAL: without calls there are no ticks that could lower the mean."""
        self.mean_s, self.load = 0.0, LoadState.NORMAL

    def takes_partial(self) -> bool:
        """Whether a partial may be requested now; counts each one that may not."""
        if self.load is LoadState.NORMAL:
            return True
        self.shed_partials += 1
        return False
