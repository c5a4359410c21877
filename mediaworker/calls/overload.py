"""When the media tick cannot keep up: first partials are shed, then new calls refused; calls in progress lose nothing.

No I/O and no clock. What counts is the lag of the tick, averaged over about two seconds, so that a hiccup of the
machine is not taken for overload.
"""

from __future__ import annotations

from enum import IntEnum

from config.metrics.registry import MetricsRegistry

HORIZON = 64
"""Ticks over which the lag is averaged, exponentially: two seconds of them when they keep their time."""
CALM = 0.5
"""A state is left when the lag has fallen below this share of what led into it."""


class LoadState(IntEnum):
    NORMAL = 0
    SHEDDING = 1
    """Partials are not asked for; finals are."""
    FULL = 2
    """And no call is taken."""


SHED_S = 0.1
"""From this mean lag of the media tick on, no partials are asked for."""
REFUSE_S = 0.5
"""From this mean lag on, no call is taken until it has fallen to half."""


class LoadGuard:
    """`lagged` takes the lag of each tick; `load` says what follows from it."""

    def __init__(self, *, shed_s: float = SHED_S, refuse_s: float = REFUSE_S) -> None:
        """`shed_s` and `refuse_s`: the mean lags from which on partials are shed, and calls refused."""
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
        """A tick, or that share of one, was through so long after it was due."""
        self.mean_s += (lag_s - self.mean_s) * share / HORIZON
        while self.load < LoadState.FULL and self.mean_s >= self._limits_s[LoadState(self.load + 1)]:
            self.load = LoadState(self.load + 1)
        while self.load > LoadState.NORMAL and self.mean_s < CALM * self._limits_s[self.load]:
            self.load = LoadState(self.load - 1)

    def calm(self) -> None:
        """There is nothing to do: no call, no tick."""
        self.mean_s, self.load = 0.0, LoadState.NORMAL

    def takes_partial(self) -> bool:
        """Whether a partial may be asked for now; counts those that may not."""
        if self.load is LoadState.NORMAL:
            return True
        self.shed_partials += 1
        return False
