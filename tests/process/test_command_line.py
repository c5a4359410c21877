"""The command as a shell runs it: pipes that close, `python -m`, and what the shells complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.patience import seconds

CALL = Path(__file__).parents[1] / "data" / "replay" / "pcmu-call.pcapng.gz"


@pytest.mark.parametrize(
    "arguments",
    [("replay", str(CALL), "--json"), ("replay", str(CALL)), ("config",), ("transcribe", "--help"), ("help",),
     ("completion", "bash")],
    ids=["events", "table", "config", "usage", "help", "completion"],
)  # fmt: skip
def test_a_reader_that_has_seen_enough_is_no_fault(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """As in `mediaworker … | head -1`; the reader may also close before the first line."""
    environ = os.environ | LISTENER_PATH | {f"MEDIAWORKER_{key}": value for key, value in LISTENER.items()}
    for lines in (1, 0):
        process = subprocess.Popen(
            [sys.executable, "-m", "mediaworker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=tmp_path, env=environ,
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(seconds(60)) == 0 and errors == ""
        process.stderr.close()


def test_bash_completes_commands_actions_and_options(tmp_path: Path) -> None:
    script = subprocess.check_output([sys.executable, "-m", "mediaworker", "completion", "bash"], text=True)

    def completed(*words: str) -> list[str]:
        line = f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}"
        ask = f"{script}\n{line}; _mediaworker; echo ${{COMPREPLY[*]}}"
        return subprocess.check_output(["bash", "-c", ask], text=True, cwd=tmp_path).split()

    assert completed("mediaworker", "tran") == ["transcript", "transcribe"]
    assert completed("mediaworker", "watch", "--j") == ["--json"]
    assert completed("mediaworker", "models", "p") == ["pull"]
    assert completed("mediaworker", "help", "er") == ["erase"]
    assert completed("mediaworker", "completion", "z") == ["zsh"]
    assert completed("mediaworker", "serve", "worker.t") == [], "the shell's own files"
    assert completed("mediaworker", "nothing", "--") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command(shell: str) -> None:
    script = subprocess.check_output([sys.executable, "-m", "mediaworker", "completion", shell], text=True)
    assert "transcript" in script and "json" in script and "mediaworker" in script
