"""What a run has shown."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field


class PerSecond:
    """How often something has happened in each second."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, now_s: float) -> None:
        self._counts[int(now_s)] += 1

    def total(self, begin_s: float, end_s: float) -> int:
        return sum(count for second, count in self._counts.items() if begin_s <= second < end_s)


class Waits:
    """Seconds that were waited, by the second in which the wait began."""

    def __init__(self) -> None:
        self._waits_s: defaultdict[int, array[float]] = defaultdict(lambda: array("f"))

    def add(self, now_s: float, waited_s: float) -> None:
        self._waits_s[int(now_s)].append(waited_s)

    def between(self, begin_s: float, end_s: float) -> list[float]:
        """Sorted."""
        return sorted(wait for second, waits in self._waits_s.items() if begin_s <= second < end_s for wait in waits)

    def count(self) -> int:
        return sum(map(len, self._waits_s.values()))

    def quantiles(self, part: float) -> dict[int, float]:
        """Of each second."""
        return {second: quantile(sorted(waits), part) for second, waits in sorted(self._waits_s.items())}


@dataclass(slots=True)
class Sample:
    """Of all engine servers that are simulated, at a moment."""

    at_s: float
    calls: int
    waiting: int
    """Requests at all servers that have no answer."""
    uneven: float
    """Legs of the server with most of a region's, over their mean: that of the worst region."""
    servers: int
    busy: float
    """Share of the time since the last sample in which a server had a step, the mean of all."""


@dataclass(slots=True)
class Tally:
    final_waits_s: Waits = field(default_factory=Waits)
    """From the endpoint; 0 if the text was there before."""
    partial_waits_s: Waits = field(default_factory=Waits)
    """Of those that were still the newest."""
    partials_asked: PerSecond = field(default_factory=PerSecond)
    partials_answered: PerSecond = field(default_factory=PerSecond)
    moves: PerSecond = field(default_factory=PerSecond)
    """Legs that have gone to another engine server."""
    finals_asked: int = 0
    """Utterances that have reached their endpoint."""
    sent_again: int = 0
    lost_utterances: int = 0
    """With their workers."""
    lost_ended: int = 0
    """Those of them that had reached their endpoint."""
    lost_calls: int = 0
    refused: PerSecond = field(default_factory=PerSecond)
    """Calls that no worker took, however often they were tried."""
    retries: int = 0
    """Calls that one region did not take, and another was asked for."""
    samples: list[Sample] = field(default_factory=list)


def quantile(ordered: list[float], part: float) -> float:
    """The nearest rank; nan of nothing."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else math.nan


def most(values: Iterable[float]) -> float:
    return max(values, default=math.nan)
