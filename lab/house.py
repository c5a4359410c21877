"""Where the repository is, which of its packages may import which, and their files as parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

# package → what it may import of ours
ALLOWED = {
    "config": set(),
    "audio": {"config"},
    "sip": {"audio", "config"},
    "asr": {"audio", "config"},
    "mediaworker": {"sip", "asr", "audio", "config"},
}


def files(*folders: str) -> Iterator[Path]:
    """The Python files under these folders of the repository."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file; the first one is its module."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> frozenset[str]:
    """The packages that a file imports, by the first part of their names."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return frozenset(names)
