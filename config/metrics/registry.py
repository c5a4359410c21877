"""The registry behind `/metrics`: each part registers its metrics once, and scrapes read them on the loop's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from config.metrics.counters import Histogram, descriptions

PREFIX = "mediaworker_"

Value = float | Histogram | Mapping[Any, float] | Mapping[str, Histogram]
"""One value, or a value for each value of the label; with several labels, for each tuple of label values."""


@dataclass(frozen=True, slots=True)
class Metric:
    kind: Literal["counter", "gauge", "histogram"]
    name: str
    """The full name, with the prefix and a counter's suffix."""
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Value]


class MetricsRegistry:
    """The metrics of one process. Names are given without prefix and suffix."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics.values())

    def counter(self, name: str, help: str, read: Callable[[], Value], *labels: str) -> None:
        self._add(Metric("counter", f"{PREFIX}{name}_total", help, labels, read))

    def gauge(self, name: str, help: str, read: Callable[[], Value], *labels: str) -> None:
        self._add(Metric("gauge", PREFIX + name, help, labels, read))

    def histogram(self, name: str, help: str, value: Histogram | Mapping[str, Histogram], *labels: str) -> None:
        self._add(Metric("histogram", PREFIX + name, help, labels, lambda: value))

    def counters(self, prefix: str, source: Any) -> None:
        """Register the fields of the dataclass `source` that have a help text (`config.metrics.counters`).

        Each is named `mediaworker_<prefix>_<attribute>`, unless its description has a name.
        """
        for attribute, each in descriptions(source):
            name = each.name or f"{prefix}_{attribute}"
            if isinstance(value := getattr(source, attribute), Histogram):
                self.histogram(name, each.help, value)
            else:
                self.counter(name, each.help, partial(getattr, source, attribute), *each.labels)

    def _add(self, metric: Metric) -> None:
        assert metric.name not in self._metrics, f"{metric.name} twice"
        self._metrics[metric.name] = metric
