"""Measurements of where time is spent: histograms of all calls (`latency`), spans of single ones (`traces`, `otlp`)."""
