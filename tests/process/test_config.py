"""Configuration: the one line a person gets when it is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lab.patience import seconds


@pytest.mark.parametrize("command", ["config", "serve"])
def test_what_only_its_part_can_judge_is_wrong_for_every_command(tmp_path: Path, command: str) -> None:
    environ = os.environ | {"MEDIAWORKER_TWILIO__THEN": "<Dial>"}
    argv = [sys.executable, "-m", "mediaworker.cli.main", command]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=seconds(30))
    assert done.returncode == 2 and "twilio.then = '<Dial>'" in done.stderr.splitlines()[-1]


def test_command_prints_or_exits_2(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[sip]\nport = 99999\n")
    command = [sys.executable, "-m", "mediaworker.cli.main", "config"]
    good = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert good.returncode == 0 and tomllib.loads(good.stdout)["http"]["port"] == 8080
    bad = subprocess.run([*command, "--config", str(file)], capture_output=True, text=True, cwd=tmp_path)
    assert bad.returncode == 2 and "sip.port = 99999" in bad.stderr and bad.stderr.count("\n") == 1
