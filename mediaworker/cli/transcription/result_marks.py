"""Marks on the results of `mediaworker transcribe`, each of which names the result's source.

A file in the place of a result without a mark belongs to another program: beside a voicemail `msg0000.wav`, Asterisk
writes its own `msg0000.txt`. A file with the mark of another source is that source's result. Neither is accepted as a
result, nor replaced.

The mark is an extended attribute, which stays with the file when it is renamed. If the file system has no extended
attributes, the mark is a hidden file beside the result, and is valid while the result has not been changed.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import msgspec

from config.log.text import printable
from mediaworker.errors import MediaworkerError

ATTRIBUTE = "user.mediaworker"
NO_ATTRIBUTES = (errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ENOSPC, errno.E2BIG, errno.ERANGE)


class NotOurResult(MediaworkerError):
    """A file in the place of a result must not be replaced; the message names it and says what to do."""


class Mark(msgspec.Struct, frozen=True):
    """The source of a result, with its size and time when it was read."""

    path: str
    bytes: int
    mtime_ns: int


class _Beside(msgspec.Struct, frozen=True):
    """A mark in a hidden file, with the size and the time of the result."""

    mark: Mark
    bytes: int
    mtime_ns: int


def check(result: Path, source: Mark) -> bool:
    """Whether the result exists and belongs to the source in its present state. Raises NotOurResult, OSError."""
    try:
        found = result.stat()
    except FileNotFoundError:
        return False
    mark = _read(result, found) if stat.S_ISREG(found.st_mode) else None
    place = printable(str(result))
    if mark is None:
        what = f"{place} is there, and is no result of this command"
    elif mark.path != source.path and (mark.bytes, mark.mtime_ns) != (source.bytes, source.mtime_ns):
        what = f"{place} is the result of {mark.path}"
    else:
        return (mark.bytes, mark.mtime_ns) == (source.bytes, source.mtime_ns)
    raise NotOurResult(f"{what}: move it away, or choose another folder with -o")


def write(half: Path, result: Path, source: Mark) -> None:
    """Mark a file that is about to be renamed to the result. Raises OSError."""
    try:
        os.setxattr(half, ATTRIBUTE, msgspec.json.encode(source))
    except OSError as error:
        if error.errno not in NO_ATTRIBUTES:
            raise
        found = half.stat()
        _beside(result).write_bytes(msgspec.json.encode(_Beside(source, found.st_size, found.st_mtime_ns)))


def _read(result: Path, found: os.stat_result) -> Mark | None:
    try:
        return msgspec.json.decode(os.getxattr(result, ATTRIBUTE), type=Mark)
    except (OSError, ValueError):
        pass
    try:
        beside = msgspec.json.decode(_beside(result).read_bytes(), type=_Beside)
    except (OSError, ValueError):
        return None
    return beside.mark if (beside.bytes, beside.mtime_ns) == (found.st_size, found.st_mtime_ns) else None


def _beside(result: Path) -> Path:
    return result.with_name(f".{result.name}.source")
