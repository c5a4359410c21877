"""Prometheus: the counters that the parts of the worker keep as plain integers, read when somebody asks.

No part counts through this module; it is told where to look.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from config.counters import MetricDescription, described, descriptions

PREFIX = "mediaworker_"
LATENCY_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

Value = float | Mapping[Any, float]
"""A number, or one for each value of the label; with several labels, for each tuple of their values."""


class Histogram:
    """Counts of observations by upper bound; plain numbers, to be used on one thread."""

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


def histogram(name: str, help: str, bounds: Sequence[float] = LATENCY_S) -> Histogram:
    """A field of a dataclass, for `MetricsRegistry.counters`; name without prefix."""
    made: Histogram = described(partial(Histogram, bounds), MetricDescription(help, name))
    return made


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Value]
    family: type[CounterMetricFamily] | type[GaugeMetricFamily]

    def collect(self) -> Metric:
        family = self.family(self.name, self.help, labels=self.labels)
        value = self.read()
        if isinstance(value, Mapping):
            for key, number in value.items():
                family.add_metric(key if isinstance(key, tuple) else (str(key),), number)
        else:
            family.add_metric((), value)
        return family


class MetricsRegistry:
    """What `/metrics` shows. Register sources once at start; they are read at each scrape, on the loop's thread."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._histograms: dict[str, tuple[str, str, Mapping[str, Histogram]]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def counter(self, name: str, help: str, read: Callable[[], Value], *labels: str) -> None:
        """`mediaworker_<name>_total`; name without prefix and suffix."""
        self._add(_Source(PREFIX + name, help, labels, read, CounterMetricFamily))

    def gauge(self, name: str, help: str, read: Callable[[], Value], *labels: str) -> None:
        self._add(_Source(PREFIX + name, help, labels, read, GaugeMetricFamily))

    def counters(self, prefix: str, source: Any) -> None:
        """The fields of the dataclass `source` that have a help text (`config.counters`), histograms among them.

        Each is `mediaworker_<prefix>_<attribute>`, unless it names itself.
        """
        for attribute, each in descriptions(source):
            name = each.name or f"{prefix}_{attribute}"
            if isinstance(value := getattr(source, attribute), Histogram):
                self.histogram(name, each.help, value)
            else:
                self.counter(name, each.help, partial(getattr, source, attribute), *each.labels)

    def histogram(self, name: str, help: str, histogram: Histogram) -> None:
        self.histograms(name, help, "", {"": histogram})

    def histograms(self, name: str, help: str, label: str, histograms: Mapping[str, Histogram]) -> None:
        """One per value of `label`."""
        assert name not in self._histograms
        self._histograms[name] = (help, label, histograms)

    def collect(self) -> Iterator[Metric]:
        for source in self._sources.values():
            yield source.collect()
        for name, (help, label, histograms) in self._histograms.items():
            family = HistogramMetricFamily(PREFIX + name, help, labels=(label,) if label else ())
            for value, histogram in histograms.items():
                family.add_metric((value,) if label else (), histogram.cumulative(), histogram.sum)
            yield family

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def table(self) -> Iterator[tuple[str, str, str, str]]:
        """(name as in a query, kind, labels, help) of everything there is, whether it has a value or not."""
        for source in self._sources.values():
            counter = source.family is CounterMetricFamily
            name = source.name + "_total" * counter
            yield name, "counter" if counter else "gauge", ", ".join(source.labels), source.help
        for name, (help, label, _) in self._histograms.items():
            yield PREFIX + name, "histogram", label, help

    def exposition(self) -> tuple[bytes, str]:
        """(body, content type) of a scrape."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _add(self, source: _Source) -> None:
        name = source.name + "_total" * (source.family is CounterMetricFamily)
        assert name not in self._sources, f"{name} twice"
        self._sources[name] = source
