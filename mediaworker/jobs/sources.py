"""The files of jobs: uploads in a folder of `data_dir`, and files under configured folders. Every function may block.

An upload is `<id>.part` until all of it is on the disk, and `<id>` from then on. A file of the same name in the folder
`job_requests` holds the job as it was requested. So when the store has lost a job because its database was damaged or
deleted, the next start makes the job again. An upload without a request is kept for a day and then erased.
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
    """The file of a job does not exist, may not be read, or has changed; the message is the reason, for the client."""


class Sources:
    def __init__(self, settings: Settings) -> None:
        data_dir = Path(settings.data_dir)
        self._folder, self._requests = data_dir / "jobs", data_dir / "job_requests"
        self._min_free = settings.files.min_free_mb * 1024 * 1024
        self._roots = [os.path.realpath(root) for root in settings.jobs.roots]

    def incoming(self, job_id: str) -> IncomingFile:
        """Begin the upload of a job. Raises OSError."""
        return IncomingFile(self._folder, min_free_bytes=self._min_free, path=_place(self._folder, job_id, PART))

    def keep(self, job: Job) -> None:
        """Keep a complete upload with its request; both survive a power cut when this returns. Raises OSError."""
        make_directory(self._requests)
        write_file(_place(self._requests, job.id), _encoder.encode(job))
        os.replace(_place(self._folder, job.id, PART), _place(self._folder, job.id))
        sync_directory(self._folder)

    def drop(self, job_id: str) -> None:
        """Erase the upload of a job and its request. Raises OSError."""
        # The request is erased first: without it a start does not make the job again, wherever this is cut off.
        places = _place(self._requests, job_id), _place(self._folder, job_id), _place(self._folder, job_id, PART)
        for path in places:
            path.unlink(missing_ok=True)

    def uploads(self) -> set[str]:
        """Return the ids of the complete uploads. Raises OSError."""
        return {path.name for path in _files(self._folder) if path.suffix != PART}

    def requested(self, job_id: str) -> Job | None:
        """Return the job as it was requested, if its upload is whole; otherwise None. Raises OSError."""
        try:
            job = _decoder.decode(_place(self._requests, job_id).read_bytes())
            whole = _place(self._folder, job_id).stat().st_size == job.source.bytes
        except (FileNotFoundError, ValueError):
            return None
        return job if job.id == job_id and job.state == "queued" and whole else None

    def erase_incomplete(self) -> int:
        """Erase the remains of interrupted uploads; return their number. It must not run during an upload. Raises
        OSError."""
        parts = [path for path in _files(self._folder) if path.suffix == PART]
        uploads = self.uploads()
        for path in (*parts, *(path for path in _files(self._requests) if path.name not in uploads)):
            path.unlink(missing_ok=True)
        return len(parts)

    def erase_unknown(self, job_ids: Iterable[str], before_s: float) -> int:
        """Erase those of the uploads that are older than `before_s`; return the number of others. Raises OSError."""
        left = 0
        for job_id in job_ids:
            with contextlib.suppress(FileNotFoundError):
                if _place(self._folder, job_id).stat().st_mtime < before_s:
                    self.drop(job_id)
                else:
                    left += 1
        return left

    def named(self, path: str) -> Source:
        """Return a file on this machine by its path. Raises SourceError, whose message does not reveal whether a file
        outside `jobs.roots` exists."""
        if not self._roots:
            raise SourceError("files of this machine cannot be named: jobs.roots is empty")
        descriptor = self._under(path)
        try:
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return Source(os.path.basename(path), found.st_size, path, found.st_mtime_ns)

    def open(self, job: Job) -> int:
        """Open the file of a job; return its descriptor. Raises SourceError."""
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
        """Raise SourceError when the file has changed since the job was created."""
        found = os.fstat(descriptor)
        if job.source.path and (found.st_size, found.st_mtime_ns) != (job.source.bytes, job.source.mtime_ns):
            raise SourceError("the file has changed since the job was made")

    def _under(self, path: str) -> int:
        """Open a regular file under `jobs.roots`; return its descriptor. Raises SourceError.

        It is first opened with O_PATH, which reads nothing, then checked, and then opened through that descriptor. So
        the checked file is the one that is read, even if the path is replaced meanwhile, and no pipe or device is
        opened, which may block or have side effects.
        """
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
    """Return the path of a job's file in `folder`. Raises ValueError for an id that would lead out of the folder."""
    if job_id in ("", ".", "..") or "/" in job_id or "\0" in job_id:
        raise ValueError(f"{job_id[:100]!r} is no id of a job")
    return folder / f"{job_id}{suffix}"


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
