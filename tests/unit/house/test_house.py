"""The shape of the house: imports point one way, and heavy modules stay where they are used."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lab.house import ALLOWED, ROOT, files, imports, nodes

IO_FREE = {"asyncio", "socket", "threading", "time", "selectors", "subprocess", "multiprocessing", "select"}


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str) -> None:
    found = list(files(package))
    assert len(found) > 2, f"{package} is empty"
    for path in found:
        ours = imports(path) & set(ALLOWED)
        assert ours <= ALLOWED[package] | {package}, f"{path.relative_to(ROOT)} imports {ours - ALLOWED[package]}"


def test_audio_has_no_io_clock_or_threads() -> None:
    for path in files("audio"):
        assert not imports(path) & IO_FREE, f"{path.relative_to(ROOT)} imports {imports(path) & IO_FREE}"


def test_scheduler_is_pure() -> None:
    assert not imports(ROOT / "asr/scheduling/scheduler.py") & (IO_FREE | {"numpy", "torch"})


def test_every_folder_is_a_package() -> None:
    """A folder without `__init__.py` would be missing from the wheel."""
    folders = {path.parent for package in ALLOWED for path in files(package)}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_no_step_stops_for_the_memory_or_the_device() -> None:
    """The server that this one replaces lost 150 ms a chunk to them."""
    allowed = {"asr/engines/qwen/device/execution.py": {"synchronize"}, "asr/inference/process.py": {"gc.collect"}}
    for path in files("asr"):
        tree = nodes(path)[0]
        calls = [ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)]
        names = {call.rpartition(".")[2] for call in calls} | set(calls)
        stops = names & {"gc.collect", "empty_cache", "ipc_collect", "synchronize"}
        assert stops <= allowed.get(str(path.relative_to(ROOT)), set()), path
        if path.name == "process.py":  # once, before the first step
            started = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "_serve")
            assert calls.count("gc.collect") == 1 and "gc.collect" in ast.unparse(started)


# Library → what of it is used though its name begins with an underscore, and why.
PRIVATE = {
    "_int_mm": "torch has no public product of int8 matrices: mm(out_dtype=) and scaled_mm refuse them",
    "_pjsua2": "the binding that tools/build_pjsip.sh makes, with a module of ours in it",
    "_replace": "public: a method of named tuples",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name.strip("_") != ""


def test_only_public_names_of_libraries_are_used() -> None:
    """An attribute that begins with an underscore and that none of our own code defines belongs to somebody else."""
    found = [(path, node) for path in files(*ALLOWED) for node in nodes(path)]
    ours = set(PRIVATE)
    for _, node in found:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                ours.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                ours.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Constant(value=str(name)):
                ours.add(name)
    foreign = []
    for path, node in found:
        match node:
            case ast.Attribute(attr=name) if is_private(name) and name not in ours:
                foreign.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] not in ALLOWED:
                parts = [*module.split("."), *(each.name for each in names)]
                foreign += [f"{path.relative_to(ROOT)}:{node.lineno} {part}" for part in parts if is_private(part)]
            case ast.Import(names=names):
                parts = [part for each in names for part in each.name.split(".")]
                foreign += [
                    f"{path.relative_to(ROOT)}:{node.lineno} {part}"
                    for part in parts
                    if is_private(part) and part not in PRIVATE
                ]
    assert foreign == []


def mentioned(path: Path) -> set[str]:
    """What a test imports, which nobody parses for that alone."""
    return set(re.findall(r"^\s*(?:from|import) (\w+)", path.read_text("utf-8"), re.MULTILINE))


def test_no_unit_test_starts_a_process_or_loads_torch() -> None:
    for path in files("tests/unit"):
        assert not mentioned(path) & {"subprocess", "multiprocessing", "torch", "transformers"}, path


def test_what_tests_share_is_in_the_laboratory() -> None:
    for path in files("tests", "lab", "tools", "benchmarks"):
        assert "tests" not in mentioned(path), path
    assert not any("lab" in imports(path) for path in files(*ALLOWED))


def test_unit_tests_lie_as_the_packages_do() -> None:
    for path in files("tests/unit"):
        folder = path.parent.relative_to(ROOT / "tests/unit")
        assert folder.parts[:1] in ((), ("house",)) or (ROOT / folder / "__init__.py").exists(), path
