"""Word errors of engines, offline and in calls: `python -m benchmarks.words`; see docs/measurements/words.md."""
