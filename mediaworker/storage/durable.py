"""Files and folders that are still there after a power cut. All of it blocks; every function may raise OSError."""

from __future__ import annotations

import os
from pathlib import Path


def make_directory(path: Path) -> None:
    """The folder and those above it, for this user alone; the entry of each new one is synced."""
    missing = []
    folder = path.absolute()
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_directory(folder.parent)


def sync_directory(path: Path) -> None:
    """What was created, renamed or removed in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: str | Path) -> None:
    """What was written to it by whomever. Not for a file that SQLite holds locks on: closing it would drop them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """All of it or nothing: whoever finds `path` finds what it held before, or `data`."""
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    os.replace(part, path)
    sync_directory(path.parent)
