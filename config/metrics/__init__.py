"""The metrics of every package: plain numbers, each defined beside its name and help text.

A part counts in fields and histograms (`counters`), and registers them together with its gauges
(`registry.MetricsRegistry`). This package does not depend on Prometheus: `mediaworker.ops.exposition` writes the
registered metrics in its format.
"""
