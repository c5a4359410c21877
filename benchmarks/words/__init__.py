"""Word errors of the engines at hand, offline and through real calls: `python -m benchmarks.words`, docs/words.md."""
