"""No two files import each other, nor two folders, by whatever way round: a file can be read once those that it imports
are known. The root of a package is no folder: it has what its folders share, and may offer what they have.
"""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from lab.house import ALLOWED, ROOT, files, nodes


@cache
def _modules() -> dict[str, set[str]]:
    """module → modules of ours that it imports, for types alone as well."""
    found = {}
    for path in files(*ALLOWED):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {module: _imported(path, found) - {module} for module, path in found.items()}


def _imported(path: Path, known: dict[str, Path]) -> set[str]:
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (below & known.keys()) or {node.module}
    return names & known.keys()


@cache
def _folders() -> dict[str, set[str]]:
    """folder → folders of ours that its files import. One that lies in another is another one."""
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in files(*ALLOWED)}

    def folder(module: str) -> str:
        return module if module in packages else module.rpartition(".")[0]

    graph: dict[str, set[str]] = {package: set() for package in packages - ALLOWED.keys()}
    for module, imported in _modules().items():
        if (here := folder(module)) not in ALLOWED:
            graph[here] |= {there for there in map(folder, imported) if there != here and there not in ALLOWED}
    return graph


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


def test_no_folder_imports_itself_by_way_of_another() -> None:
    assert len(_folders()) > 40
    assert not _circle(_folders()), " → ".join(_circle(_folders()))


def test_a_circle_is_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
