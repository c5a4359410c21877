"""Whose a result of `mediaworker transcribe` is. Each has a mark that names its source.

A file that stands in the place of a result and has none is somebody else's: beside a voicemail `msg0000.wav` Asterisk
has a `msg0000.txt` of its own. One with the mark of another source is that one's result. Neither is ever taken for a
result, nor replaced.

The mark is an extended attribute, which goes with the file when that is renamed. Where a file system has none it is a
hidden file beside the result, and counts as long as the result is as it was written.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import msgspec

from config.log_text import printable
from mediaworker.errors import MediaworkerError

ATTRIBUTE = "user.mediaworker"
NO_ATTRIBUTES = (errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ENOSPC, errno.E2BIG, errno.ERANGE)


class NotOurResult(MediaworkerError):
    """What stands in the place of a result is not to be replaced; the message names it and says what to do."""


class Mark(msgspec.Struct, frozen=True):
    """The source of a result, as it was when it was read."""

    path: str
    bytes: int
    mtime_ns: int


class _Beside(msgspec.Struct, frozen=True):
    """A mark in a file of its own, with the result's size and time."""

    mark: Mark
    bytes: int
    mtime_ns: int


def check(result: Path, source: Mark) -> bool:
    """Whether the result of the source as it is now is there. Raises NotOurResult, OSError."""
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
