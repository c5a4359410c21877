"""The files of jobs: uploads in a folder of `data_dir`, and files under configured folders. All of it may block.

An upload is `<id>.part` until all of it is on the disk; one of which no job knows is erased at the next start.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Sequence
from pathlib import Path

from mediaworker.files.disk import Incoming
from mediaworker.jobs.record import Job, Source

PART = ".part"


class SourceError(Exception):
    """The file is not to be had; the message says why."""


class Sources:
    def __init__(self, data_dir: Path, roots: Sequence[str], *, min_free_bytes: int) -> None:
        self._folder, self._min_free = data_dir / "jobs", min_free_bytes
        self._roots = [os.path.realpath(root) for root in roots]

    def incoming(self, job_id: str) -> Incoming:
        """Raises OSError."""
        return Incoming(self._folder, min_free_bytes=self._min_free, path=self._folder / f"{job_id}{PART}")

    def keep(self, job_id: str) -> None:
        """All of it has come. Raises OSError."""
        os.replace(self._folder / f"{job_id}{PART}", self._folder / job_id)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def drop(self, job_id: str) -> None:
        """Raises OSError."""
        for name in (job_id, f"{job_id}{PART}"):
            (self._folder / name).unlink(missing_ok=True)

    def sweep(self, known: Collection[str]) -> int:
        """Erase what no job will read; how many there were. Raises OSError."""
        if not self._folder.is_dir():
            return 0
        lost = [path for path in self._folder.iterdir() if path.name not in known and path.is_file()]
        for path in lost:
            path.unlink(missing_ok=True)
        return len(lost)

    def named(self, path: str) -> Source:
        """A file on this machine. Raises SourceError, which says no more of what is outside than that it is."""
        if not self._roots:
            raise SourceError("files of this machine cannot be named: jobs.roots is empty")
        descriptor = self._under(path)
        try:
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return Source(os.path.basename(path), found.st_size, path, found.st_mtime_ns)

    def open(self, job: Job) -> int:
        """A descriptor. Raises SourceError."""
        if not job.source.path:
            try:
                return os.open(self._folder / job.id, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise SourceError(f"the upload is gone ({error.strerror})") from None
        descriptor = self._under(job.source.path)
        try:
            self.check(job, descriptor)
        except SourceError:
            os.close(descriptor)
            raise
        return descriptor

    def check(self, job: Job, descriptor: int) -> None:
        """It is still the file that the job was made for. Raises SourceError."""
        found = os.fstat(descriptor)
        if job.source.path and (found.st_size, found.st_mtime_ns) != (job.source.bytes, job.source.mtime_ns):
            raise SourceError("the file has changed since the job was made")

    def _under(self, path: str) -> int:
        """Found first and looked at then: what is checked is what is read, and nothing else is opened. To open a pipe
        or a device may block, or set something off."""
        outside = SourceError("there is no such file under jobs.roots")
        if "\0" in path or not os.path.isabs(path):
            raise outside
        try:
            found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            raise outside from None
        try:
            here = f"/proc/self/fd/{found}"
            real = os.path.realpath(here)
            regular = stat.S_ISREG(os.fstat(found).st_mode)
            if not regular or not any(os.path.commonpath((real, root)) == root for root in self._roots):
                raise outside
            return os.open(here, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(f"the file cannot be read ({error.strerror})") from None
        finally:
            os.close(found)
