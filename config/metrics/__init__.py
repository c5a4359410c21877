"""What the parts of every package count and measure: plain numbers, each with its name and help text beside it.

A part counts in fields and histograms (`counters`), and registers them, with gauges that are read from it, where it is
(`registry.MetricsRegistry`). Nothing here knows Prometheus: `mediaworker.ops.exposition` writes what is registered.
"""
