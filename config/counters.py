"""Counters that `/metrics` shows: fields of a dataclass, each with its help text beside it.

The parts count in plain integers; `mediaworker.ops.metrics` reads them, with names and help texts, at each scrape.
A field without a help text is counted for tests and logs alone.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, cast

_KEY = "metric"


@dataclass(frozen=True, slots=True)
class MetricDescription:
    help: str
    name: str = ""
    """Without `mediaworker_` and `_total`. Empty: a prefix that its reader knows, and the name of the attribute."""
    labels: tuple[str, ...] = ()
    """None or one; with one, the field is a mapping from the label's values."""


def described(default_factory: Callable[[], Any], description: MetricDescription) -> Any:
    """A field that begins as what `default_factory` returns."""
    return field(default_factory=default_factory, metadata={_KEY: description})


def counter(help: str, *, name: str = "") -> int:
    """A field that begins at 0."""
    return cast(int, described(int, MetricDescription(help, name)))


def counter_by(label: str, help: str, *, name: str = "") -> Any:
    """A field that is a `collections.Counter`: a number for each value of `label`."""
    return described(collections.Counter, MetricDescription(help, name, (label,)))


def descriptions(source: Any) -> Iterator[tuple[str, MetricDescription]]:
    """(attribute, description) of those fields of a dataclass that `/metrics` shows."""
    for each in fields(source):
        if (description := each.metadata.get(_KEY)) is not None:
            yield each.name, description
