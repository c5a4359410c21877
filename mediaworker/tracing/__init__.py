"""Where the time of a call goes: histograms over all calls (`latency`), spans of single ones (`traces`, `otlp`)."""
