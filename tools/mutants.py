"""`python -m tools.mutants [--count N] [--seed S]… [--only PATH]…`: how many small faults `tests/unit` notices.

Each mutant is one random change to one line of a module without I/O, in a temporary copy of the tree. Coverage says
which files of tests run the line: they are tried first, and alone where no import, fixture or callback runs it too.
The table says which file of tests failed, or that the mutant lives.

- A module has I/O when it imports one of `IO_MODULES`, or when it only drives what does (`OTHER_LANES`).
- A number below 10 is off by one, a larger one by a factor of two: of a time or a size, one more means nothing.
- Annotations, decorators, f-strings, log lines, named numbers (`LIMIT_S = 30.0`, `LIMIT = 64 * 1024`), tables of
  numbers and the `strict` of `zip` stay as they are.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import coverage
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("config", "audio", "sip", "asr", "mediaworker")
UNIT = "tests/unit"
IO_MODULES = set(
    "asyncio ctypes http multiprocessing os select selectors shutil signal socket sqlite3 ssl subprocess tempfile"
    " threading _pjsua2 av httpx onnxruntime pjsua2 starlette torch transformers uvicorn websockets".split()
)
"""A module that imports one of these talks to the world, and its tests are in another lane."""
OTHER_LANES = {
    "asr/engines/": "tests/engine runs it with a real model",
    "mediaworker/cli/": "tests/process runs the command",
    "mediaworker/replay/": "tests/process replays recordings",
    "sip/media/call_media.py": "tests/sip runs it above real sockets",
    "sip/pjsip/": "tests/sip runs it above PJSIP",
    "mediaworker/ingress/sip/calls.py": "tests/sip runs it above PJSIP",
}
ALSO = ("config/load.py", "mediaworker/events/subscription.py", "mediaworker/events/search.py")
"""Modules that import one of `IO_MODULES` only for a type or an event, and hold logic."""
SLOWEST_S = 150
LARGE = 10
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    path: str
    line: int
    lines: range
    """Those of its statement, without the statements inside."""
    start: int
    end: int
    """Bytes of the file that are replaced."""
    new: str
    what: str


def modules() -> list[str]:
    """The modules without I/O."""
    found = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        outside = {module.split(".")[0] for module in _imported(ast.parse(path.read_bytes()))}
        if name in ALSO or not (name.startswith(tuple(OTHER_LANES)) or outside & IO_MODULES):
            found.append(name)
    return found


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def mutants(path: str) -> list[Mutant]:
    """Every mutant of a file."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, new, what, lines in _changes(ast.parse(source), range(0)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        found.append(Mutant(path, node.lineno, lines, start, end, new, what))
    return found


def _changes(node: ast.AST, lines: range) -> Iterator[tuple[ast.expr | ast.stmt, str, str, range]]:
    """Node, what replaces it, the two in words, and the lines of its statement.

    Annotations, decorators, the options of classes, f-strings and log lines stay as they are, and so do named numbers
    (`LIMIT_S = 30.0`): their values are choices, to which tests refer by name. A negative number is a sentinel.
    """
    if isinstance(node, ast.stmt):
        inside = getattr(node, "body", None)
        lines = range(node.lineno, max(node.lineno + 1, inside[0].lineno if inside else (node.end_lineno or 0) + 1))
    if isinstance(node, ast.JoinedStr) or _is_named_number(node) or _is_negative_number(node) or _is_table(node):
        return
    if ast.unparse(node).startswith(("if TYPE_CHECKING:", "if __name__ ==")) or (
        isinstance(node, ast.keyword) and node.arg == "strict"
    ):
        return
    yield from ((*change, lines) for change in _changes_of(node))
    skipped = ("annotation", "returns", "decorator_list", "keywords" if isinstance(node, ast.ClassDef) else "")
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in skipped:
                yield from _changes(child, lines)


def _changes_of(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPPED:
            swapped = ast.Compare(node.left, [SWAPPED[type(operator)]()], node.comparators)  # type: ignore[list-item]
            yield node, f"({ast.unparse(swapped)})", f"{ast.unparse(node)} → {ast.unparse(swapped)}"
        case ast.BinOp(op=ast.Add() | ast.Sub()) | ast.BoolOp():
            changed = copy.copy(node)
            changed.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
            yield node, f"({ast.unparse(changed)})", f"{ast.unparse(node)} → {ast.unparse(changed)}"
        case ast.UnaryOp(op=ast.Not()):
            yield node, f"({ast.unparse(node.operand)})", f"{ast.unparse(node)} → {ast.unparse(node.operand)}"
        case ast.Constant(value=bool(value)):
            yield node, str(not value), f"{value} → {not value}"
        case ast.Constant(value=int() | float() as number):
            yield from ((node, str(other), f"{number} → {other}") for other in _others(number))
        case ast.Return(value=ast.expr() as result) if not _is_nothing(result):
            yield node, "return None", f"{ast.unparse(node)} → return None"
        case ast.Expr(value=ast.Call() as call) if not re.match(r"(self\.)?_?log\.", ast.unparse(call.func)):
            yield node, "pass", f"{ast.unparse(node)} → pass"
        case ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Delete() | ast.Continue():
            yield node, "pass", f"{ast.unparse(node)} → pass"
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from ((test, forced, f"if {ast.unparse(test)} → if {forced}") for forced in ("True", "False"))


def _is_nothing(node: ast.expr) -> bool:
    """None, or False, which says as much where it is asked for."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _is_named_number(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        name, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        name, value = node.target, node.value
    else:
        return False
    names = name.elts if isinstance(name, ast.Tuple) else [name]
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    named = all(isinstance(each, ast.Name) and each.id.strip("_").isupper() for each in names)
    return named and all(map(_is_arithmetic, values))


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_arithmetic(node.left) and _is_arithmetic(node.right)
    return isinstance(node, ast.Constant | ast.Name) or _is_negative_number(node)


def _is_negative_number(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)


def _is_table(node: ast.AST) -> bool:
    return isinstance(node, ast.Tuple | ast.List) and len(node.elts) > LARGE and all(map(_is_arithmetic, node.elts))


def _others(number: float) -> tuple[float, ...]:
    """A small number is off by one, as loops and bounds go wrong. A large one is a time, a size or a rate, for which
    one more or less means nothing: it is off by a factor of two."""
    if number < LARGE:
        return tuple(number + by for by in (1, -1) if number + by >= 0)
    return 2 * number, number // 2 if isinstance(number, int) else number / 2


def pick(paths: list[str], count: int, seed: int) -> list[Mutant]:
    """One mutant for each of so many lines, whatever their modules."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for path in paths:
        for mutant in mutants(path):
            lines.setdefault((path, mutant.line), []).append(mutant)
    chance = random.Random(seed)
    return [chance.choice(lines[line]) for line in chance.sample(sorted(lines), min(count, len(lines)))]


class Tests:
    """Which files of tests run a line, as coverage measures them in a tree without a mutant."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        files = sorted(path.relative_to(tree).as_posix() for path in (tree / UNIT).rglob("test_*.py"))
        self._house = [name for name in files if name.startswith(f"{UNIT}/house/")]
        self._files = [name for name in files if name not in self._house]
        (tree / "mutants.coveragerc").write_text(f"[run]\nsource = {','.join(PACKAGES)}\ndata_file = .mutants\n")
        measured = "coverage", "run", "--rcfile=mutants.coveragerc", "-m"
        if failed := _failure(tree, self._files, *measured) or _failure(tree, self._house):
            raise SystemExit(f"mutants: {failed} fails without a mutant")
        self._data = coverage.CoverageData(str(tree / ".mutants"))
        self._data.read()

    def batches(self, mutant: Mutant) -> list[list[str]]:
        """Nearest first. All files where the line also runs outside a test, as in an import."""
        runs = self._data.contexts_by_lineno(str(self._tree / mutant.path))
        of_line = {each for line in mutant.lines for each in runs.get(line, ())}
        of_module = {each for contexts in runs.values() for each in contexts}
        near = [name for name in self._files if name in of_line]
        if "" not in of_line:
            return [near, self._house] if near else []
        through = [name for name in self._files if name in of_module and name not in near]
        others = [name for name in self._files if name not in near and name not in through]
        return [near, through, others, self._house]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Coverage attributes the lines that run from now on to this test's file, whoever calls them.

    Its own `dynamic_context` goes by the name of the outermost `test_…` function, which in a property is hypothesis's.
    """
    measuring = coverage.Coverage.current()
    if measuring is not None:
        measuring.switch_context(item.nodeid.partition("::")[0])


def run(tree: Path, mutant: Mutant, tests: Tests) -> str | None:
    """The file of tests that fails, or nothing."""
    path = tree / mutant.path
    before = path.read_bytes()
    _write(path, before[: mutant.start] + mutant.new.encode() + before[mutant.end :])
    try:
        return next((failed for batch in tests.batches(mutant) if batch and (failed := _failure(tree, batch))), None)
    finally:
        _write(path, before)


def _write(path: Path, source: bytes) -> None:
    """And no byte code of what it was: a file of the same size that is written in the same second looks unchanged."""
    path.write_bytes(source)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _failure(tree: Path, files: list[str], *under: str) -> str | None:
    limit_s = SLOWEST_S * (4 if under else 1)
    plugins = ["-p", "no:cacheprovider", *(("-p", "tools.mutants") if under else ())]
    command = [sys.executable, "-m", *under, "pytest", "-x", "-q", *plugins, "--tb", "no", *files]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "time limit"
    if done.returncode == 0:
        return None
    named = re.search(rf"^(?:FAILED|ERROR) {UNIT}/(\S+?\.py)", done.stdout, re.MULTILINE)
    return named[1] if named else f"exit status {done.returncode}"


def main() -> int:
    from lab import patience  # not above: pytest imports this module as a plug-in, and rewrites the laboratory after it

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="number of mutants")
    parser.add_argument("--seed", type=int, action="append", help="several times for several hundred (default: 1)")
    parser.add_argument("--only", action="append", help="a module or folder instead of all modules without I/O")
    parser.add_argument("--workers", type=int, default=1, help="mutants that are tested at a time")
    arguments = parser.parse_args()
    paths = [path for path in modules() if not arguments.only or path.startswith(tuple(arguments.only))]
    seeds = arguments.seed or [1]
    os.nice(10)
    patience.settle()  # once, not in each of hundreds of runs
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.workers) as pool:
        copies = [_copied(Path(folder) / str(number)) for number in range(arguments.workers)]
        tests = Tests(copies[0])
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for tree in copies:
            trees.put(tree)

        def tried(mutant: Mutant) -> str | None:
            tree = trees.get()
            try:
                return run(tree, mutant, tests)
            finally:
                trees.put(tree)

        for seed in seeds:
            chosen = pick(paths, arguments.count, seed)
            killers: Counter[str] = Counter()
            for mutant, killer in zip(chosen, pool.map(tried, chosen), strict=True):
                killers["LIVES" if killer is None else killer.partition("/")[0]] += 1
                where = f"{mutant.path}:{mutant.line}"
                print(f"{killer or 'LIVES':40} {where:48} {' '.join(mutant.what.split())[:160]}", flush=True)
            killed = len(chosen) - killers["LIVES"]
            rate = f"{100 * killed / len(chosen):.1f} %"
            print(f"{killed} of {len(chosen)} mutants in {len(paths)} modules fail in {UNIT}: {rate}, seed {seed}")
            print(f"({killers['house']} of them only in {UNIT}/house, {killers['time limit']} by the time limit)")
    return 0


def _copied(tree: Path) -> Path:
    """The tracked files and those that git would track, as they are now."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


if __name__ == "__main__":
    sys.exit(main())
