"""The files of jobs: uploads in a folder of `data_dir`, and files under configured folders. All of it may block.

An upload is `<id>.part` until all of it is on the disk, and `<id>` from then on. What is to be done with it is in a
file of the same name in the folder `job_requests`. So an upload that the store does not know, because its file was
damaged or deleted, is a job again at the next start; one without its request is kept for a day and then erased.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from config import Settings
from mediaworker.errors import MediaworkerError
from mediaworker.files.disk import IncomingFile
from mediaworker.jobs.record import Job, Source
from mediaworker.storage.durable import make_directory, sync_directory, write_file

PART = ".part"
_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Job)


class SourceError(MediaworkerError):
    """The file is not to be had; the message says why."""


class Sources:
    def __init__(self, settings: Settings) -> None:
        data_dir = Path(settings.data_dir)
        self._folder, self._requests = data_dir / "jobs", data_dir / "job_requests"
        self._min_free = settings.files.min_free_mb * 1024 * 1024
        self._roots = [os.path.realpath(root) for root in settings.jobs.roots]

    def incoming(self, job_id: str) -> IncomingFile:
        """Raises OSError."""
        return IncomingFile(self._folder, min_free_bytes=self._min_free, path=_place(self._folder, job_id, PART))

    def keep(self, job: Job) -> None:
        """All of its upload has come: a power cut does not take it any more. Raises OSError."""
        make_directory(self._requests)
        write_file(_place(self._requests, job.id), _encoder.encode(job))
        os.replace(_place(self._folder, job.id, PART), _place(self._folder, job.id))
        sync_directory(self._folder)

    def drop(self, job_id: str) -> None:
        """Raises OSError."""
        # The request first: an upload without it is nobody's job any more.
        places = _place(self._requests, job_id), _place(self._folder, job_id), _place(self._folder, job_id, PART)
        for path in places:
            path.unlink(missing_ok=True)

    def uploads(self) -> set[str]:
        """Ids of the uploads that are complete. Raises OSError."""
        return {path.name for path in _files(self._folder) if path.suffix != PART}

    def requested(self, job_id: str) -> Job | None:
        """The job as it was made, when it can be made again of what is on the disk. Raises OSError."""
        try:
            job = _decoder.decode(_place(self._requests, job_id).read_bytes())
            whole = _place(self._folder, job_id).stat().st_size == job.source.bytes
        except (FileNotFoundError, ValueError):
            return None
        return job if job.id == job_id and job.state == "queued" and whole else None

    def erase_incomplete(self) -> int:
        """Erase what uploads that broke off have left; how many there were. Not while one is coming in. Raises
        OSError."""
        parts = [path for path in _files(self._folder) if path.suffix == PART]
        uploads = self.uploads()
        for path in (*parts, *(path for path in _files(self._requests) if path.name not in uploads)):
            path.unlink(missing_ok=True)
        return len(parts)

    def erase_unknown(self, job_ids: Iterable[str], before_s: float) -> int:
        """Erase those of the uploads that are older; how many are left. Raises OSError."""
        left = 0
        for job_id in job_ids:
            with contextlib.suppress(FileNotFoundError):
                if _place(self._folder, job_id).stat().st_mtime < before_s:
                    self.drop(job_id)
                else:
                    left += 1
        return left

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
                return os.open(_place(self._folder, job.id), os.O_RDONLY | os.O_CLOEXEC)
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


def _place(folder: Path, job_id: str, suffix: str = "") -> Path:
    """Raises ValueError for an id that leads out of the folder."""
    if job_id in ("", ".", "..") or "/" in job_id or "\0" in job_id:
        raise ValueError(f"{job_id[:100]!r} is no id of a job")
    return folder / f"{job_id}{suffix}"


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
