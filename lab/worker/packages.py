"""Packages that are installed for a worker alone, as a user's pip would install them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def install(package: Path, folder: Path) -> Path:
    """Build and install a package without a network; returns what belongs into PYTHONPATH."""
    source, site = folder / "source", folder / "site"
    shutil.copytree(package, source)  # a build leaves its own files there
    alone = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", "-q", *alone, "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return site
