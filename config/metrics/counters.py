"""Counters and histograms that `/metrics` shows: fields of a dataclass, each with its help text beside it.

The parts count in plain numbers, which are read at each scrape. A field without a help text is not exported; it exists
for tests and logs.
"""

from __future__ import annotations

import collections
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, cast

LATENCY_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_KEY = "metric"


class Histogram:
    """A histogram: counts of observations by upper bound. It must be used on one thread."""

    def __init__(self, bounds: Sequence[float] = LATENCY_S) -> None:
        assert list(bounds) == sorted(bounds)
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations at or below it), the last bound `+Inf`."""
        total, rows = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


@dataclass(frozen=True, slots=True)
class MetricDescription:
    help: str
    name: str = ""
    """The name without `mediaworker_` and `_total`; if empty, the registry's prefix and the attribute's name."""
    labels: tuple[str, ...] = ()
    """The labels, at most one. With a label, the field is a mapping from its values to numbers."""


def counter(help: str, *, name: str = "") -> int:
    """A counter field that starts at 0."""
    return cast(int, _described(int, MetricDescription(help, name)))


def counter_by(label: str, help: str, *, name: str = "") -> Any:
    """A counter field of type `collections.Counter`: a number for each value of `label`."""
    return _described(collections.Counter, MetricDescription(help, name, (label,)))


def histogram(name: str, help: str, bounds: Sequence[float] = LATENCY_S) -> Histogram:
    """A field that is a `Histogram`."""
    return cast(Histogram, _described(partial(Histogram, bounds), MetricDescription(help, name)))


def _described(default_factory: Callable[[], Any], description: MetricDescription) -> Any:
    return field(default_factory=default_factory, metadata={_KEY: description})


def descriptions(source: Any) -> Iterator[tuple[str, MetricDescription]]:
    """(attribute, description) of those fields of a dataclass that `/metrics` shows."""
    for each in fields(source):
        if (description := each.metadata.get(_KEY)) is not None:
            yield each.name, description
