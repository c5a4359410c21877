"""All that measures: `mediaworker bench`, and the scripts of README.md. Figures are CPU time or ratios."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""Of the checkout."""
