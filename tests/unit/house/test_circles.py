"""No two files import each other, by whatever way round: a file can be read once those that it imports are known."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.unit.house.test_house import ALLOWED, ROOT

KNOWN = {}
"""Circles that are left. One that has been opened is taken off this list; none is added."""


def _modules() -> dict[str, set[str]]:
    """module → modules of ours that it imports, for types alone as well."""
    files = {}
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {module: _imported(path.read_text(encoding="utf-8"), files) - {module} for module, path in files.items()}


def _imported(source: str, known: dict) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (below & known.keys()) or {node.module}
    return names & known.keys()


def _circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", ALLOWED)
def test_no_file_imports_itself_by_way_of_another(package: str) -> None:
    graph = {module: imported for module, imported in _modules().items() if module.split(".")[0] == package}
    assert len(graph) > 2 and any(graph.values())
    assert not _circle(graph), " → ".join(_circle(graph))


def test_a_circle_is_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
