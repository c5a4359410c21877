"""The metrics that docs/reference/metrics.md promises, and the selectors that deploy/ uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser

from lab.house import ROOT

DEPLOY = ROOT / "deploy"


def families() -> dict[str, tuple[str, str, str]]:
    """Name → kind, labels, help of everything the worker may ever show."""
    text = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$", text)
    return {name: (kind, labels.replace("`", "").strip(), help) for name, kind, labels, help in rows}


def selectors(node: Any) -> Iterator[Any]:
    """Every vector selector of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        if (inner := getattr(node, name, None)) is not None and not isinstance(inner, str):
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)
