"""Files and functions that fit in the head, and folders that fit on a screen."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lab.house import ALLOWED, ROOT, files, nodes

LINES_OF_FILE, LINES_OF_FUNCTION, FILES_OF_FOLDER = 400, 60, 15


def _functions(path: Path) -> list[tuple[str, int]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in nodes(path) if isinstance(node, kinds)]
    return [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in found]


@pytest.mark.parametrize("package", ALLOWED)
def test_files_and_functions_are_short(package: str) -> None:
    sizes = {path.relative_to(ROOT): path.read_text("utf-8").count("\n") for path in files(package)}
    too_long = {str(name): size for name, size in sizes.items() if size > LINES_OF_FILE}
    for name in sizes:
        for function, size in _functions(ROOT / name):
            if size > LINES_OF_FUNCTION:
                too_long[f"{name} {function}"] = size
    assert sizes and not too_long


@pytest.mark.parametrize("package", ALLOWED)
def test_folders_have_few_files(package: str) -> None:
    folders = {path.parent for path in files(package)}
    counts = {str(folder.relative_to(ROOT)): len(_modules(folder)) for folder in folders}
    assert not {name: count for name, count in counts.items() if count > FILES_OF_FOLDER}


def _modules(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.py") if path.name != "__init__.py"]
