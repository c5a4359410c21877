"""Runs the commands of a page as somebody would who pastes them, in a network and a folder of their own.

The network is a namespace with nothing but loopback, so the default ports are free and nothing outside is reached. In
it `mediaworker serve` and `engine` go on in the background, and every other `mediaworker` waits until they answer.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import textwrap
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from audio.codecs.g711 import ulaw_decode
from lab.house import ROOT
from lab.patience import seconds

DATA = ROOT / "tests/data"
LINKED = ("tests", "models", "examples")
KINDS = {"sh": "bash", "console": "bash", "python": sys.executable, "js": "node"}
STREAM = "mediaworker stream ws://127.0.0.1:8081/twilio/stream --play a.wav"
SERVER = re.compile(r"mediaworker (serve|engine)\b")
ENDLESS = re.compile(r"mediaworker (serve|engine|watch)\b|curl -N\b")
"""Commands that only somebody at the keyboard ends."""
IS_THERE = shutil.which("unshare") is not None and subprocess.run(["unshare", "-rn", "true"]).returncode == 0

_COMMAND = """\
#!/bin/bash
# Servers of the block: each is waited for by all other commands, by the configuration that it was started with.
case "$1" in
serve|engine)
  number=$(mktemp "$PAGES/server.XXXXXX")
  export -p > "$number"
  printf '%s\\n' "$@" > "$number.words"
  exec "$PYTHON" -m mediaworker "$@" ;;
esac
wait-for-servers || exit 1
exec "$PYTHON" -m mediaworker "$@"
"""
_WAIT = """\
#!/bin/bash
# With a number: until so many have begun to start.
while [ "$(ls "$PAGES" | grep -c '[.]words$')" -lt "${1:-0}" ]; do sleep 0.05; done
[ -z "$1" ] || exit 0
for server in "$PAGES"/server.??????; do
  [ -e "$server" ] || continue
  (
    . "$server"
    for try in $(seq 600); do "$PYTHON" -m mediaworker health 2> "$PAGES/health" && exit 0; sleep 0.2; done
    cat "$PAGES/health" >&2
    exit 1
  ) || exit 1
done
"""
_SCENE = """\
set -e
ip link set lo up
cd "$PAGES"
{started}
wait-for-servers
{checked}
kill $(jobs -p) 2> /dev/null || true
wait || true
echo PAGE-DONE
"""


def furnish(folder: Path) -> None:
    """The files that pages name, and the commands of this checkout."""
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    samples = ulaw_decode((DATA / "digits" / "customer.ulaw").read_bytes())
    for name in ("speech", "a", "hello"):
        _write_wav(folder / f"{name}.wav", np.asarray(samples, np.int16))
    shutil.copy(folder / "a.wav", folder / "film.mkv")
    shutil.copy(folder / "a.wav", folder / "voicemail.mp3")
    (folder / "voicemail").mkdir()
    shutil.copy(folder / "a.wav", folder / "voicemail" / "monday.wav")
    (folder / "call.pcapng.gz").write_bytes((DATA / "replay/pcmu-call.pcapng.gz").read_bytes())
    (folder / "call.pcap").write_bytes(gzip.decompress((DATA / "replay/g722-call.pcap.gz").read_bytes()))
    (folder / "stream.jsonl").write_bytes(gzip.decompress((DATA / "replay/twilio-call.jsonl.gz").read_bytes()))
    commands = folder / "bin"
    commands.mkdir()
    python = '#!/bin/sh\nexec "$PYTHON" "$@"\n'
    for name, text in (("mediaworker", _COMMAND), ("wait-for-servers", _WAIT), ("python", python)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)


def run(folder: Path, commands: Sequence[str], *, beside: str = "", checked: str = "") -> str:
    """Run these commands in the furnished folder, and return all that they printed. `beside` runs before them, and
    `checked` when all servers answer.

    Raises:
        AssertionError: a command of it failed, or a server did not begin to answer.
    """
    lines, servers = [], 0
    for command in ([f"{beside} > beside.log 2>&1"] if beside else []) + list(commands):
        lines.append(f"{command} &" if ENDLESS.search(command) and not command.endswith("&") else command)
        if SERVER.search(command):
            servers += 1
            lines.append(f"wait-for-servers {servers}")
    if beside:
        lines.insert(2, "wait-for-servers")
    scene = _SCENE.format(started="\n".join(lines), checked=checked)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MEDIAWORKER_")} | {
        "PAGES": str(folder), "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "HOME": str(folder),
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}:/usr/sbin:/sbin", "MEDIAWORKER_SHUTDOWN_S": "0.5",
    }  # fmt: skip
    done = subprocess.run(
        ["unshare", "-rn", "--kill-child", "--pid", "--fork", "bash", "-c", textwrap.dedent(scene)],
        env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds(240),
    )  # fmt: skip
    assert done.returncode == 0 and "PAGE-DONE" in done.stdout, done.stdout + _logs(folder)
    return done.stdout


def _logs(folder: Path) -> str:
    return "".join(f"\n- {path.name} -\n{path.read_text()}" for path in sorted(folder.glob("*.log")))


def _write_wav(path: Path, samples: np.typing.NDArray[np.int16]) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples.tobytes())
