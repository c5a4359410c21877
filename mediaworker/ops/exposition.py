"""The metrics of a process in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from config.metrics.counters import Histogram
from config.metrics.registry import MetricsRegistry

FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


def exposition(metrics: MetricsRegistry) -> tuple[bytes, str]:
    """The response to a scrape: (body, content type)."""
    return generate_latest(_Scrape(metrics)), CONTENT_TYPE_LATEST


class _Scrape(Collector):
    def __init__(self, metrics: MetricsRegistry) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for each in self._metrics:
            family = FAMILIES[each.kind](each.name, each.help, labels=each.labels)
            value = each.read()
            for key, one in value.items() if isinstance(value, Mapping) else (((), value),):
                labels = key if isinstance(key, tuple) else (str(key),)
                if isinstance(one, Histogram):
                    family.add_metric(labels, one.cumulative(), one.sum)
                else:
                    family.add_metric(labels, one)
            yield family
