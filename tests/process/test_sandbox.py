"""The process that decodes strangers' files can do nothing else, and nothing of its user's can look into the worker."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from config import Endpointing
from config.process import child_process
from config.settings import Files
from lab.media import confined_reader, material
from lab.media import hostile as hostile_media
from lab.worker import peers
from lab.worker.peers import ROOT, worker
from mediaworker.files import decoder_process, sandbox
from mediaworker.files.decoder_process import CPU_S, DecoderProcess, FileRefused, ReadingPlan
from mediaworker.files.messages import Chunk

PLAN, SETTINGS = ReadingPlan("mix", Endpointing()), Files()


async def refusal(path: Path, name: str, settings: Files = SETTINGS) -> FileRefused:
    with path.open("rb") as file:
        async with DecoderProcess(file.fileno(), name, PLAN, settings) as reading:
            reading.grant(1000)
            with pytest.raises(FileRefused) as refused:
                async for _ in reading.messages():
                    pass
    return refused.value


def confinement(pid: int) -> set[tuple[str, str]]:
    """Of each thread: whether it has no_new_privs, and the mode of seccomp, of which 2 is a filter."""
    statuses = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/status")]
    fields = [dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line) for status in statuses]
    return {(each["NoNewPrivs"], each["Seccomp"]) for each in fields}


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Files are read by a decoder that a stranger has taken over; the path of one of four bytes."""
    spawn = child_process.spawn
    monkeypatch.setattr(
        child_process, "spawn", lambda _, *rest, **more: spawn("lab.media.confined_reader", *rest, **more)
    )
    path = tmp_path / "file"
    path.write_bytes(b"RIFF")
    return path


@pytest.mark.parametrize("name", ["attempts", "nobody-attempts"])
async def test_a_decoder_that_is_taken_over_can_do_nothing(name: str, taken_over: Path) -> None:
    refused = await refusal(taken_over, name)
    assert refused.fault == "unreadable", refused
    found = json.loads(refused.reason)
    assert found.pop("the file") == "RIFF"
    assert {what: came for what, came in found.items() if came != "EPERM"} == {}
    assert found.keys() >= confined_reader.ATTEMPTS.keys()
    assert len(found) > 400, "all other system calls have been tried as well"


async def test_what_cannot_be_confined_reads_nothing(taken_over: Path) -> None:
    refused = await refusal(taken_over, "no-seccomp")
    assert refused.fault == "internal" and "no-such-library.so is missing" in refused.reason


async def test_every_thread_of_a_reader_is_confined(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    material.splice(path, 60.0, seed=6)
    with path.open("rb") as file:
        async with DecoderProcess(file.fileno(), path.name, PLAN, Files()) as reading:
            reading.grant(1)
            async for message in reading.messages():
                if isinstance(message, Chunk):
                    break
            assert reading.pid is not None
            assert confinement(reading.pid) == {("1", "2")}
            limits = [resource.prlimit(reading.pid, each)[0] for each in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE)]
            assert limits == [CPU_S, 0]


async def test_who_takes_too_much_processor_time_is_ended_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_process, "CPU_S", 1)
    (bomb,) = [each for each in hostile_media.bombs() if each.name == "30-hours.flac"]
    bomb.make(tmp_path / bomb.name)
    refused = await refusal(tmp_path / bomb.name, bomb.name, Files(max_hours=100.0))
    assert (refused.fault, refused.reason) == (
        "too_large", "decoding it takes more than 1 s of processor time"
    )  # fmt: skip


LANDLOCK_ALONE = """
import ctypes, os, socket, sys
from mediaworker.files import sandbox
listener = socket.create_server(("127.0.0.1", 0))
ctypes.CDLL(None).prctl(sandbox.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
assert sandbox.restrict_files()
for number, attempt in enumerate((
    lambda: os.open("/etc/passwd", os.O_RDONLY),
    lambda: os.open("/dev/null", os.O_WRONLY),
    lambda: os.listdir("/"),
    lambda: os.mkdir("/tmp/escaped"),
    lambda: socket.create_connection(listener.getsockname()),
    lambda: os.kill(os.getppid(), 0),
)):
    needed = (1, 1, 1, 1, 4, 6)[number]
    try:
        attempt()
        assert sandbox.landlock_version() < needed, number
    except PermissionError:
        pass
"""


def test_landlock_alone_keeps_files_and_the_network_from_it() -> None:
    if not sandbox.landlock_version():  # a kernel of 2021 or earlier, or one that is told to do without
        assert not sandbox.restrict_files() and "no Landlock" in sandbox.shortcomings()[-1]
        return
    assert sandbox.shortcomings() == []
    done = subprocess.run([sys.executable, "-c", LANDLOCK_ALONE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LOOK_INTO = """
import ctypes, os, sys
pid, libc = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True)
for name in ("mem", "environ"):
    try:
        os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
        sys.exit(f"{name} can be read")
    except PermissionError:
        pass
if not libc.ptrace(16, pid, 0, 0):
    sys.exit("it can be traced")
"""


def test_nobody_of_the_same_user_looks_into_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[str] = []
    if os.getuid() == 0:  # the same user without root's power over all processes
        assert (setpriv := shutil.which("setpriv")) is not None
        plain = [setpriv, "--inh-caps=-all", "--bounding-set=-all"]
    look = [*plain, sys.executable, "-c", LOOK_INTO]
    other = subprocess.Popen([*plain, "sleep", "600"])
    try:
        done = subprocess.run([*look, str(other.pid)], capture_output=True, text=True)
        assert done.returncode == 1 and "can be" in done.stderr, "any other process can be looked into"
    finally:
        other.kill()
        other.wait()
    monkeypatch.setattr(peers, "COMMAND", [*plain, *peers.COMMAND])
    with worker(tmp_path, SIP__ENABLED="false") as running:
        done = subprocess.run([*look, str(running.process.pid)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert running.metric("mediaworker_open_fds") > 0 and running.metric("mediaworker_resident_memory_bytes") > 0
