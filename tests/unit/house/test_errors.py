"""Each package has one root of its errors, whose docstring names every error that leaves the package's files."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TREES = {"audio": "audio/__init__.py", "sip": "sip/protocol/errors.py", "mediaworker": "mediaworker/errors.py"}
OURS = {"AssertionError"}
"""An error of ours is no input's fault, and nothing catches it."""


def errors(package: str) -> dict[str, set[str]]:
    """The classes of `package` and the names of their bases, of all classes that have an exception among them."""
    bases: dict[str, set[str]] = {}
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                bases[node.name] = names - {node.name}

    def is_error(name: str) -> bool:
        known = getattr(builtins, name, None)
        return (isinstance(known, type) and issubclass(known, BaseException)) or any(map(is_error, bases.get(name, ())))

    return {name: found for name, found in bases.items() if is_error(name)}


@pytest.mark.parametrize("package", TREES)
def test_errors_have_one_root(package: str) -> None:
    tree = (ROOT / TREES[package]).read_text()
    found = errors(package)
    roots = {name for name, bases in found.items() if not bases & found.keys() and not bases & OURS}
    assert len(roots) == 1, roots
    missing = {name for name in found if not name.startswith("_") and name not in tree and not found[name] & OURS}
    assert not missing
