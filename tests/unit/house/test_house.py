"""The shape of the house: imports point one way, and heavy modules stay where they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# package → what it may import of ours
ALLOWED = {
    "config": set(),
    "audio": {"config"},
    "sip": {"audio", "config"},
    "asr": {"audio", "config"},
    "mediaworker": {"sip", "asr", "audio", "config"},
}
IO_FREE = {"asyncio", "socket", "threading", "time", "selectors", "subprocess", "multiprocessing", "select"}


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert len(files) > 2, f"{package} is empty"
    for path in files:
        ours = imports(path) & set(ALLOWED)
        assert ours <= ALLOWED[package] | {package}, f"{path.relative_to(ROOT)} imports {ours - ALLOWED[package]}"


def test_audio_has_no_io_clock_or_threads() -> None:
    for path in (ROOT / "audio").rglob("*.py"):
        assert not imports(path) & IO_FREE, f"{path.relative_to(ROOT)} imports {imports(path) & IO_FREE}"


def test_scheduler_is_pure() -> None:
    assert not imports(ROOT / "asr/server/scheduler.py") & (IO_FREE | {"numpy", "torch"})


@pytest.mark.parametrize("module", ["mediaworker.worker", "mediaworker.cli.main"])
def test_media_process_imports_nothing_heavy(module: str) -> None:
    """Not even when it has looked for every engine, and whether it could run."""
    code = f"""
import {module}, sys
from asr.engines import plugin
from config.settings import Asr
for name in plugin.BUILT_IN:
    plugin.find(name).missing(Asr()), plugin.find(name).about(Asr())
print(*sorted(m for m in sys.modules if '.' not in m))"""
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split())
    assert "mediaworker" in loaded
    heavy = {"torch", "onnxruntime", "av", "moonshine_voice", "transformers", "silero_vad", "scipy", "rich"}
    assert not loaded & heavy, f"{module} loads {loaded & heavy}"


def test_one_worker_alone_imports_nothing_of_a_cluster() -> None:
    code = "import mediaworker.worker, mediaworker.cli.serve, sys; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split()
    servers = {f"asr.client.servers.{name}" for name in ("server_pool", "engine_connection")}
    assert "asr.client.recognizer" in loaded
    parts = ("asr.network", "mediaworker.cluster", "nats")
    assert not [name for name in loaded if name.startswith(parts) or name in servers]


def test_a_worker_without_traces_loads_nothing_of_them() -> None:
    """Nor does an engine server, once they are made."""
    code = """
import asyncio, sys
from config.load import parse
from mediaworker.engine_service import EngineService
from mediaworker.worker import Worker
async def make():
    Worker(parse({"cluster": {"nats": ["nats://127.0.0.1:4222"]}}))
    EngineService(parse({"asr": {"listen": "tcp://127.0.0.1:9095"}, "cluster": {"token": "none"}}))
asyncio.run(make())
print(*sys.modules)"""
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split()
    assert "mediaworker.ops.traces" in loaded
    parts = ("opentelemetry", "google.protobuf", "requests", "urllib3", "mediaworker.ops.otlp")
    assert not [name for name in loaded if name.startswith(parts)]


def test_every_package_is_listed() -> None:
    import tomllib

    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for package in ALLOWED
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert found == listed


def test_no_step_stops_for_the_memory_or_the_device() -> None:
    """The server that this one replaces lost 150 ms a chunk to them."""
    allowed = {"asr/engines/qwen/device/staging.py": {"synchronize"}, "asr/server/process.py": {"gc.collect"}}
    for path in (ROOT / "asr").rglob("*.py"):
        tree = ast.parse(path.read_text())
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
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
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8")) for name in ALLOWED for path in (ROOT / name).rglob("*.py")
    }
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    ours = set(PRIVATE)
    for _, node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                ours.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                ours.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Constant(value=str(name)):
                ours.add(name)
    foreign = []
    for path, node in nodes:
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
