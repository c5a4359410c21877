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
from pathlib import Path

import pytest

from lab.engine.listener import LISTENER, LISTENER_PATH, Limit
from lab.media import hostile as hostile_media
from lab.media import material
from lab.patience import seconds, until
from lab.worker.peers import COMMAND, ROOT, TINY
from mediaworker.cli import transcribe as transcribe_command
from mediaworker.cli.main import main

QWEN = {"ASR__ENGINE": "qwen", "ASR__MODEL": str(TINY)}


def environ_of(settings: dict[str, str], paths: dict[str, str] = LISTENER_PATH) -> dict[str, str]:
    return os.environ | {f"MEDIAWORKER_{key}": value for key, value in settings.items()} | paths


def transcribe(
    *arguments: str, settings: dict[str, str] = LISTENER, paths: dict[str, str] = LISTENER_PATH, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run to its end."""
    return subprocess.run(
        [*COMMAND, "transcribe", *arguments], capture_output=True, text=True, timeout=seconds(60), cwd=cwd,
        env=environ_of(settings, paths),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("voicemail")
    for number in range(2):
        material.splice(made / f"message-{number}.wav", 15.0, seed=30 + number)
    samples, _ = material.recording(15.0, seed=32)
    material.encode(made / "message-2.mp3", samples, "libmp3lame", 44_100)
    return made


@pytest.fixture(scope="module")
def heard(folder: Path) -> list[str]:
    """What the listener makes of the first two messages: other words for other samples."""
    done = transcribe(*(str(folder / f"message-{number}.wav") for number in range(2)), "--format", "json")
    texts = [json.loads(line)["text"] + "\n" for line in done.stdout.splitlines()]
    assert done.returncode == 0 and len({*texts}) == 2 and all(text.strip() for text in texts), done.stderr
    return texts


def said(seed: int) -> str:
    _, table = material.recording(15.0, seed)
    return " ".join(each.text for each in table) + "\n"


def test_a_folder_in_several_formats(folder: Path, tmp_path: Path) -> None:
    (folder / ".hidden").write_text("no")
    formats = ["--format", "txt", "--format", "json"]
    done = transcribe(str(folder), "-o", str(tmp_path / "out"), *formats, "--language", "en", settings=QWEN)
    assert done.returncode == 0, done.stderr
    names = {"message-0", "message-1", "message-2"}
    assert {each.name for each in (tmp_path / "out").iterdir()} == {f"{n}.{f}" for n in names for f in ("txt", "json")}
    for name, seed in (("message-0", 30), ("message-1", 31), ("message-2", 32)):
        assert (tmp_path / "out" / f"{name}.txt").read_text() == said(seed)
        found = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert found["text"] == said(seed).strip() and found["language"] == "english" and found["segments"]
    stamps = {each: each.stat().st_mtime_ns for each in (tmp_path / "out").iterdir()}
    assert transcribe(str(folder), "-o", str(tmp_path / "out"), *formats).returncode == 0
    assert {each: each.stat().st_mtime_ns for each in stamps} == stamps, "none is made again"


def test_results_keep_the_tree_and_their_names(tmp_path: Path, folder: Path, heard: list[str]) -> None:
    for number, name in enumerate(("a/x.wav", "b/x.wav")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes((folder / f"message-{number}.wav").read_bytes())
    out = tmp_path / "out"
    done = transcribe("a/x.wav", "./b/../b/x.wav", "a/x.wav", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {each.relative_to(out).as_posix() for each in out.rglob("*") if each.is_file()} == {"a/x.txt", "b/x.txt"}
    assert [(out / name / "x.txt").read_text() for name in "ab"] == heard
    before = (out / "b/x.txt").stat().st_mtime_ns
    assert transcribe("b/x.wav", "-o", "out", cwd=tmp_path).returncode == 0
    assert (out / "b/x.txt").stat().st_mtime_ns == before, "alone, it has the same name, and is finished"
    clash = transcribe(str(tmp_path / "a/x.wav"), f"../{tmp_path.name}/b/x.wav", "-o", "other", cwd=tmp_path)
    assert clash.returncode == 2 and "would both be written to other/x.txt" in clash.stderr
    assert not (tmp_path / "other").exists(), "before any work began"


def test_several_to_the_terminal_are_named_and_in_order(folder: Path, tmp_path: Path, heard: list[str]) -> None:
    long = tmp_path / "long\n.wav"
    material.splice(long, 60.0, seed=52)  # it is finished last
    files = [str(long), "no-such-file.wav", str(folder / "message-1.wav")]
    done = transcribe(*files)
    assert done.returncode == 3 and "no-such-file.wav" in done.stderr
    found = [json.loads(line) for line in transcribe(*files[::2], "--format", "json").stdout.splitlines()]
    assert [each["file"] for each in found] == [f"{tmp_path}/long\\n.wav", files[2]]
    heading = "==> {} <==\n".format
    assert done.stdout == (
        heading(f"{tmp_path}/long\\n.wav") + found[0]["text"] + "\n" + heading(folder / "message-1.wav") + heard[1]
    )


def test_from_standard_input(folder: Path, tmp_path: Path, heard: list[str]) -> None:
    with subprocess.Popen(["cat", str(folder / "message-1.wav")], stdout=subprocess.PIPE) as cat:  # a pipe cannot seek
        done = subprocess.run(
            [*COMMAND, "transcribe", "-", "-o", str(tmp_path)], env=environ_of(LISTENER), stdin=cat.stdout,
            capture_output=True, timeout=seconds(60),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("stdin.txt", heard[1])]


def test_speakers_by_channel(tmp_path: Path) -> None:
    path = tmp_path / "two.wav"
    material.two_speakers(path, 15.0, seed=4)
    formats = [each for format in ("vtt", "json", "txt") for each in ("--format", format)]
    arguments = ["--channels", "split", "--speaker", "Ann", "--speaker", "Bob", *formats]
    done = transcribe(str(path), "-o", str(tmp_path), *arguments)
    assert done.returncode == 0, done.stderr
    segments = json.loads((tmp_path / "two.json").read_text())["segments"]
    assert {each["speaker"] for each in segments} == {"Ann", "Bob"}
    assert segments == sorted(segments, key=lambda each: each["start"])
    lines = (tmp_path / "two.txt").read_text().splitlines()
    assert lines == [f"{each['speaker']}: {each['text']}" for each in segments]
    subtitles = (tmp_path / "two.vtt").read_text()
    for number, name in enumerate(("Ann", "Bob")):
        alone = tmp_path / f"{name}.wav"
        material.splice(alone, 15.0, seed=8 + number)
        mine = " ".join(each["text"] for each in segments if each["speaker"] == name)
        one = transcribe(str(alone))
        assert (one.returncode, one.stdout) == (0, mine + "\n"), "a single file has no heading"
        cues = re.findall(rf"<v {name}>((?:.+\n?)+)", subtitles)
        assert " ".join(" ".join(cues).split()) == mine


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
def test_exit_codes(
    arguments: list[str], code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(transcribe_command, "forbid_tracing", lambda: None)  # this process goes on
    monkeypatch.setenv("MEDIAWORKER_ASR__MODEL", str(TINY))
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        try:
            found = main(["transcribe", *arguments])
        except SystemExit as ended:
            found = ended.code
    assert (found, told in (err := capsys.readouterr().err)) == (code, True), err


def test_one_bad_file_does_not_spoil_the_others(folder: Path, tmp_path: Path, heard: list[str]) -> None:
    (tmp_path / "broken.mp3").write_bytes(b"ID3" + bytes(1000))
    done = transcribe(str(tmp_path / "broken.mp3"), str(folder / "message-1.wav"), "-o", str(tmp_path / "out"))
    assert done.returncode == 3 and "broken.mp3" in done.stderr
    assert (tmp_path / "out" / "message-1.txt").read_text() == heard[1]


def test_names_of_all_kinds_are_read_and_have_results(folder: Path, tmp_path: Path, heard: list[str]) -> None:
    """Bytes that are no UTF-8, a name as long as a name may be, and a pipe, beside a file as others are."""
    named, out = tmp_path / "in", tmp_path / "out"
    named.mkdir()
    for name in (os.fsdecode(b"caf\xe9.wav"), "r" * 251 + ".wav", "ü" * 125 + ".wav"):
        os.link(folder / "message-0.wav", named / name)
    os.mkfifo(named / "pipe")
    with subprocess.Popen(["cp", str(folder / "message-1.wav"), str(named / "pipe")]):
        done = transcribe(*map(str, sorted(named.iterdir())), str(folder / "message-1.wav"), "-o", str(out))
    assert done.returncode == 0, done.stderr
    found = {os.fsencode(path.name): path.read_text() for path in out.iterdir()}
    assert sorted(map(len, found)) == [8, 8, 13, 243, 244]
    for name, text in found.items():
        assert text == heard[name in (b"pipe.txt", b"message-1.txt")], name
    again = transcribe(str(named / ("r" * 251 + ".wav")), "-o", str(out))
    assert again.returncode == 0 and len(list(out.iterdir())) == 5, "the same name again"


def test_files_of_others_are_neither_taken_for_results_nor_replaced(
    folder: Path, tmp_path: Path, heard: list[str]
) -> None:
    """Beside a voicemail stands the PBX's own text of the same name, a link to one, and a folder."""
    for name in ("own", "newer", "older", "link", "folder"):
        os.link(folder / "message-0.wav", tmp_path / f"{name}.wav")
    theirs = {}
    for name, offset_s in (("newer", 3600), ("older", -86_400), ("elsewhere", 0)):
        (tmp_path / f"{name}.txt").write_text(f"[message]\ncallerid={name}\n")
        stamp = (tmp_path / "own.wav").stat().st_mtime + offset_s
        os.utime(tmp_path / f"{name}.txt", (stamp, stamp))
        theirs[name] = (tmp_path / f"{name}.txt").read_text()
    (tmp_path / "link.txt").symlink_to("elsewhere.txt")
    (tmp_path / "folder.txt").mkdir()
    arguments = [f"{name}.wav" for name in ("newer", "older", "link", "folder", "own")]
    for more in ([], ["--force"]):
        done = transcribe(*arguments, "-o", ".", *more, cwd=tmp_path)
        assert done.returncode == 5, done.stderr
        for name in ("newer", "older", "link", "folder"):
            assert f"{name}.wav: {name}.txt is there, and is no result of this command" in done.stderr
        assert {name: (tmp_path / f"{name}.txt").read_text() for name in theirs} == theirs
        assert (tmp_path / "own.txt").read_text() == heard[0], "the others are done"
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "folder.txt").is_dir()
    assert not list(tmp_path.glob(".*")), "nothing is left of those that were not written"


def test_a_result_of_another_file_of_the_same_name_is_not_this_ones(
    folder: Path, tmp_path: Path, heard: list[str]
) -> None:
    for number, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.wav").write_bytes((folder / f"message-{number}.wav").read_bytes())
    out = tmp_path / "out"
    assert transcribe(str(tmp_path / "a" / "x.wav"), "-o", str(out)).returncode == 0
    done = transcribe(str(tmp_path / "b" / "x.wav"), "-o", str(out))
    assert done.returncode == 5 and f"out/x.txt is the result of {tmp_path}/a/x.wav" in done.stderr
    assert (out / "x.txt").read_text() == heard[0]
    (tmp_path / "a").rename(tmp_path / "moved")
    before = (out / "x.txt").stat().st_mtime_ns
    assert transcribe(str(tmp_path / "moved" / "x.wav"), "-o", str(out)).returncode == 0
    assert (out / "x.txt").stat().st_mtime_ns == before, "the same file elsewhere is finished"
    old = (tmp_path / "moved" / "x.wav").stat()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.wav").write_bytes((folder / "message-1.wav").read_bytes())
    os.utime(tmp_path / "a" / "x.wav", (old.st_atime - 3600, old.st_mtime - 3600))
    assert transcribe(str(tmp_path / "a" / "x.wav"), "-o", str(out)).returncode == 0
    assert (out / "x.txt").read_text() == heard[1], "another content under its name, however old, is done anew"


def test_a_result_that_cannot_be_written_is_one_files_trouble(folder: Path, tmp_path: Path, heard: list[str]) -> None:
    for name in ("a/x.wav", "b.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.link(folder / "message-1.wav", tmp_path / name)
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_text("where a folder must be")
    done = transcribe("a/x.wav", "no-such-file.wav", "b.wav", "-o", "out", cwd=tmp_path)
    assert done.returncode == 3 and "a/x.wav: its result cannot be written: out/a/x.txt: Not a directory" in done.stderr
    assert "no-such-file.wav: No such file" in done.stderr and (out / "b.txt").read_text() == heard[1]
    assert transcribe("a/x.wav", "b.wav", "-o", "out", cwd=tmp_path).returncode == 5


def test_what_a_damaged_file_still_says(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "noise.mp3").write_bytes(hostile_media.noisy((folder / "message-2.mp3").read_bytes()))
    done = transcribe(str(tmp_path / "noise.mp3"), "-o", str(tmp_path))
    assert done.returncode == 4 and "the file is damaged or cut off" in done.stderr, done.stderr
    assert (tmp_path / "noise.txt").read_text().strip()


def test_without_an_engine(folder: Path) -> None:
    done = transcribe(str(folder / "message-1.wav"), settings={"ASR__ENGINE": "unusable"})
    assert done.returncode == 1 and "there is no engine" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_what_was_interrupted_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    path, limit, most = tmp_path / "long.wav", Limit(tmp_path / "finals"), 5
    material.splice(path, 60.0, seed=50)
    whole = json.loads(transcribe(str(path), "--format", "json").stdout)
    arguments = [*COMMAND, "transcribe", str(path), "-o", str(tmp_path)]
    partial = tmp_path / ".long.partial"
    limit.set(most)
    first = subprocess.Popen(
        arguments, env=environ_of(LISTENER, limit.environ), stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    until(lambda: partial.exists() and partial.read_bytes().count(b"\n") == 1 + most, 60)
    first.send_signal(how)
    _, told = first.communicate(timeout=seconds(30))
    assert first.returncode == (130 if how is signal.SIGINT else -how) and b"Traceback" not in told
    assert how is not signal.SIGINT or b"the same command goes on" in told
    assert not (tmp_path / "long.txt").exists() and most < len(whole["segments"])
    limit.set(len(whole["segments"]) - most)  # of which each is enough, if none is asked for again
    second = transcribe(str(path), "-o", str(tmp_path), paths=limit.environ)
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "long.txt").read_text() == whole["text"] + "\n"
    assert not partial.exists()


def test_a_bar_with_rate_and_time_left(folder: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    arguments = [*COMMAND, "transcribe", str(folder / "message-0.wav"), "-o", str(tmp_path)]
    process = subprocess.Popen(arguments, env=environ_of(LISTENER), stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # it has ended
            break
    os.close(ours)
    assert process.wait(seconds(30)) == 0
    text = shown.decode()
    assert "15/15 s" in text and "1/1 files" in text and "100%" in text
    assert re.search(r"\d+x real time", text) and re.search(r"<\d\d:\d\d", text)
