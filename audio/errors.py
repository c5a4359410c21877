"""The root of this package's errors; the package's docstring shows the tree, and whose fault each error is."""

from __future__ import annotations


class AudioError(Exception):
    """The base of the package's errors."""
