"""A file system that an error makes read-only while files on it are open, as a disk does that fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

SIZE_BYTES = 64 * 1024 * 1024


class Ext4:
    """An ext4 in a file, for root. Every method but `fail` may raise OSError or CalledProcessError."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._image, self.folder = folder / "image", folder / "disk"
        self.folder.mkdir()
        with self._image.open("wb") as image:
            image.truncate(SIZE_BYTES)
        self._run("mkfs.ext4", "-q", str(self._image))

    def mount(self) -> None:
        self._run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.folder))

    def fail(self) -> None:
        """The kernel takes it for damaged from now on, and lets nobody write. What was written before is kept."""
        self._run("sync", "-f", str(self.folder))
        device = self._run("findmnt", "-n", "-o", "SOURCE", str(self.folder)).strip()
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("for a test")

    def unmount(self) -> None:
        self._run("umount", str(self.folder))

    def repair(self) -> None:
        """Nobody has a file open on it."""
        self.unmount()
        subprocess.run(["fsck.ext4", "-p", "-f", str(self._image)], capture_output=True)  # 1: it has mended something
        self.mount()

    def _run(self, *command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
