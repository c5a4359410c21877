"""`mediaworker transcribe` as a person uses it: results, exit codes, an interruption, and again."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from lab.media import hostile as hostile_media
from lab.media import material
from lab.patience import until
from lab.worker.peers import COMMAND, ROOT, TINY, command

ENVIRON = {"ASR__ENGINE": "qwen", "ASR__MODEL": str(TINY)}


def transcribe(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return command("transcribe", *arguments, **(ENVIRON | environ))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("voicemail")
    for number in range(2):
        material.splice(made / f"message-{number}.wav", 15.0, seed=30 + number)
    samples, _ = material.recording(15.0, seed=32)
    material.encode(made / "message-2.mp3", samples, "libmp3lame", 44_100)
    return made


def said(seed: int, seconds: float = 15.0) -> str:
    _, table = material.recording(seconds, seed)
    return " ".join(each.text for each in table) + "\n"


def test_a_folder_in_several_formats(folder: Path, tmp_path: Path) -> None:
    (folder / ".hidden").write_text("no")
    formats = ["--format", "txt", "--format", "json"]
    done = transcribe(str(folder), "-o", str(tmp_path / "out"), *formats, "--language", "en")
    assert done.returncode == 0, done.stderr
    names = {"message-0", "message-1", "message-2"}
    assert {each.name for each in (tmp_path / "out").iterdir()} == {f"{n}.{f}" for n in names for f in ("txt", "json")}
    for name, seed in (("message-0", 30), ("message-1", 31), ("message-2", 32)):
        assert (tmp_path / "out" / f"{name}.txt").read_text() == said(seed)
        found = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert found["text"] == said(seed).strip() and found["language"] == "english" and found["segments"]
    stamps = {each: each.stat().st_mtime_ns for each in (tmp_path / "out").iterdir()}
    started = time.monotonic()
    again = transcribe(str(folder), "-o", str(tmp_path / "out"), *formats)
    assert again.returncode == 0
    assert {each: each.stat().st_mtime_ns for each in stamps} == stamps, f"made again in {time.monotonic() - started} s"


def test_results_keep_the_tree_and_their_names(tmp_path: Path) -> None:
    for number, name in enumerate(("a/x.wav", "b/x.wav")):
        (tmp_path / name).parent.mkdir()
        material.splice(tmp_path / name, 15.0, seed=30 + number)
    out = tmp_path / "out"
    environ = os.environ | {f"MEDIAWORKER_{key}": value for key, value in ENVIRON.items()}

    def run(*files: str, into: str = "out") -> subprocess.CompletedProcess[str]:
        arguments = [*COMMAND, "transcribe", *files, "-o", into]
        return subprocess.run(arguments, cwd=tmp_path, env=environ, capture_output=True, text=True)

    done = run("a/x.wav", "./b/../b/x.wav", "a/x.wav")
    assert done.returncode == 0, done.stderr
    assert {each.relative_to(out).as_posix() for each in out.rglob("*") if each.is_file()} == {"a/x.txt", "b/x.txt"}
    assert [(out / name / "x.txt").read_text() for name in "ab"] == [said(30), said(31)]
    before = (out / "b/x.txt").stat().st_mtime_ns
    assert run("b/x.wav").returncode == 0
    assert (out / "b/x.txt").stat().st_mtime_ns == before, "alone, it has the same name, and is finished"
    clash = run(str(tmp_path / "a/x.wav"), "../" + tmp_path.name + "/b/x.wav", into="other")
    assert clash.returncode == 2 and "would both be written to other/x.txt" in clash.stderr
    assert not (tmp_path / "other").exists(), "before any work began"


def test_several_to_the_terminal_are_named_and_in_order(folder: Path, tmp_path: Path) -> None:
    material.splice(tmp_path / "long\n.wav", 120.0, seed=52)  # it is finished last
    files = [str(tmp_path / "long\n.wav"), "no-such-file.wav", str(folder / "message-1.wav")]
    done = transcribe(*files)
    assert done.returncode == 3 and "no-such-file.wav" in done.stderr
    heading = "==> {} <==\n".format
    assert done.stdout == (
        heading(f"{tmp_path}/long\\n.wav") + said(52, 120.0) + heading(folder / "message-1.wav") + said(31)
    )
    found = [json.loads(line) for line in transcribe(*files[::2], "--format", "json").stdout.splitlines()]
    assert [each["file"] for each in found] == [f"{tmp_path}/long\\n.wav", files[2]]


def test_to_the_terminal(folder: Path) -> None:
    done = transcribe(str(folder / "message-1.wav"))
    assert (done.returncode, done.stdout) == (0, said(31))


def test_from_standard_input(folder: Path, tmp_path: Path) -> None:
    environ = os.environ | {f"MEDIAWORKER_{key}": value for key, value in ENVIRON.items()}
    with subprocess.Popen(["cat", str(folder / "message-1.wav")], stdout=subprocess.PIPE) as cat:  # a pipe cannot seek
        done = subprocess.run(
            [*COMMAND, "transcribe", "-", "-o", str(tmp_path)], env=environ, stdin=cat.stdout, capture_output=True
        )
    assert done.returncode == 0, done.stderr
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("stdin.txt", said(31))]


def test_speakers_by_channel(tmp_path: Path) -> None:
    left, right = material.two_speakers(tmp_path / "two.wav", 15.0, seed=4)
    arguments = ["--channels", "split", "--speaker", "Ann", "--speaker", "Bob", "--format", "vtt"]
    done = transcribe(str(tmp_path / "two.wav"), *arguments)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"<v (\w+)>", done.stdout).count("Ann") >= len(left)
    plain = transcribe(str(tmp_path / "two.wav"), *arguments[:-1], "txt").stdout.splitlines()
    spoken = [(each.start_s, f"{name}: {each.text}") for name, t in (("Ann", left), ("Bob", right)) for each in t]
    assert plain == [line for _, line in sorted(spoken)]
    for name, table in (("Ann", left), ("Bob", right)):
        lines = re.findall(rf"<v {name}>((?:.+\n?)+)", done.stdout)
        assert " ".join(" ".join(lines).split()) == " ".join(each.text for each in table)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "FILE"),
        (["x.wav", "--format", "docx"], 2, "docx"),
        (["x.wav", "--language", "klingon"], 2, "klingon"),
        (["x.wav", "--speaker", "Ann"], 2, "--channels split"),
        (["no-such-file.wav"], 3, "no-such-file.wav: No such file"),
        (["README.md"], 3, "README.md: this is no audio"),
        (["-", "-"], 2, "one file on standard input"),
        (["-"], 3, "stdin: the file is empty"),
        (["README.md", "-o", "/proc/nowhere"], 1, "/proc/nowhere"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, told: str) -> None:
    done = transcribe(*arguments)
    assert done.returncode == code and told in done.stderr, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr


def test_one_bad_file_does_not_spoil_the_others(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.mp3").write_bytes(b"ID3" + bytes(1000))
    done = transcribe(str(tmp_path / "broken.mp3"), str(folder / "message-1.wav"), "-o", str(tmp_path / "out"))
    assert done.returncode == 3 and "broken.mp3" in done.stderr
    assert (tmp_path / "out" / "message-1.txt").read_text() == said(31)


def test_what_a_damaged_file_still_says(tmp_path: Path) -> None:
    corpus = {each.name: each for each in hostile_media.corpus(tmp_path / "made")}
    path = tmp_path / "noise-in-the-midst.mp3"
    corpus[path.name].make(path)
    done = transcribe(str(path), "-o", str(tmp_path))
    assert done.returncode == 4 and "the file is damaged or cut off" in done.stderr, done.stderr
    assert (tmp_path / "noise-in-the-midst.txt").read_text().strip()


def test_without_an_engine(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text("{}")
    done = transcribe(str(folder / "message-1.wav"), ASR__MODEL=str(tmp_path / "model"))
    assert done.returncode == 1 and "there is no engine" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_what_was_interrupted_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    table = material.splice(path, 240.0, seed=50)
    arguments = [*COMMAND, "transcribe", str(path), "-o", str(tmp_path)]
    environ = os.environ | {f"MEDIAWORKER_{key}": value for key, value in ENVIRON.items()}
    partial = tmp_path / ".long.partial"
    first = subprocess.Popen(arguments, env=environ, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    until(lambda: partial.exists() and partial.read_bytes().count(b"\n") > 10, 60)
    first.send_signal(how)
    _, told = first.communicate(timeout=30)
    assert first.returncode == (130 if how is signal.SIGINT else -how) and b"Traceback" not in told
    assert how is not signal.SIGINT or b"the same command goes on" in told
    known = partial.read_bytes().count(b"\n") - 2
    assert not (tmp_path / "long.txt").exists() and 0 < known < len(table)
    second = transcribe(str(path), "-o", str(tmp_path))
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "long.txt").read_text() == said(50, 240.0)
    assert not partial.exists()


def test_a_bar_with_rate_and_time_left(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    material.splice(path, 120.0, seed=51)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    environ = os.environ | {f"MEDIAWORKER_{key}": value for key, value in ENVIRON.items()}
    arguments = [*COMMAND, "transcribe", str(path), "-o", str(tmp_path)]
    process = subprocess.Popen(arguments, env=environ, cwd=ROOT, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # it has ended
            break
    os.close(ours)
    assert process.wait(30) == 0
    text = shown.decode()
    assert "120/120 s" in text and "1/1 files" in text and "100%" in text
    assert re.search(r"\d+x real time", text) and re.search(r"<\d\d:\d\d", text)
