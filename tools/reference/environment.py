"""The official package in an environment of its own, outside the checkout; made once for each lock."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
LOCK, TORCH = REQUIREMENTS / "reference.lock", REQUIREMENTS / "torch.txt"
DONE = "complete"


class NoReference(Exception):
    """Why the environment cannot be made."""


def folder() -> Path:
    """Where it is, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mediaworker"
    digest = hashlib.sha256(LOCK.read_bytes() + TORCH.read_bytes()).hexdigest()[:12]
    return cache / f"reference-{digest}-cp{sys.version_info[0]}{sys.version_info[1]}"


def python() -> Path:
    """Its interpreter. Raises NoReference."""
    place = folder()
    found = place / "bin" / "python"
    if not (place / DONE).exists():
        print(f"reference: installing the official package into {place} (minutes, 1.6 GB)", flush=True)
        shutil.rmtree(place, ignore_errors=True)
        _run("the environment cannot be made", [sys.executable, "-m", "venv", str(place)])
        pip = [str(found), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        # --no-deps: the lock names every package, and leaves out torch and what only the web demos need.
        _run("the package cannot be installed", [*pip, "--require-hashes", "-r", str(LOCK)])
        index = ["--index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
        _run("torch cannot be installed", [*pip, *index, "-r", str(TORCH)])
        _run("the package cannot be imported", [str(found), "-c", "import qwen_asr"])
        (place / DONE).touch()
    return found


def _run(what: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise NoReference(f"{what}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if "ERROR" in line] or done.stderr.split("\n")[-2:]
        raise NoReference(f"{what}: {' '.join(lines[:1]).strip() or 'no reason was given'}")
