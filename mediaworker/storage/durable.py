"""Writes files and folders that survive a power cut. Every function blocks and may raise OSError."""

from __future__ import annotations

import os
from pathlib import Path


def make_directory(path: Path) -> None:
    """Make a folder and the missing ones above it, for this user only, and sync the entry of each new one."""
    missing = []
    folder = path.absolute()
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_directory(folder.parent)


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: str | Path) -> None:
    """Make everything that was written to a file survive a power cut, by any process.

    It must not be called for a file on which SQLite holds locks: POSIX drops all locks of a process on a file when the
    process closes any descriptor of it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically: after a kill or a power cut `path` holds either its old content or `data`."""
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
