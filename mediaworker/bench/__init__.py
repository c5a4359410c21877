"""Benchmarks that ship with the worker: `mediaworker bench`. Figures are CPU time per unit of work, or ratios."""
