"""The root of this package's errors. The tree, and whose fault each is: the package's docstring."""

from __future__ import annotations


class AudioError(Exception):
    """The base of the package's errors."""
