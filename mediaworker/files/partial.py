"""The partial transcript of a file, kept on the disk so that a restart need not recognise its segments again.

It is a file beside the result with one line per segment, under a heading that identifies the source, the engine and the
options. A last line that a kill cut off is dropped. When the heading differs, because the source has changed or other
options are asked for, the whole file is dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

import msgspec

from mediaworker.files.options import Options
from mediaworker.files.segments import FileSegment


class Heading(msgspec.Struct, frozen=True):
    """The source of the segments, and how they were recognised."""

    path: str
    bytes: int
    mtime_ns: int
    engine: str
    options: Options


class PartialFile:
    """The segments known so far, by chunk, and the file at `path` that keeps them. Raises OSError.

    `path` None: the segments are kept in memory only, and a kill loses them all.
    """

    def __init__(self, path: Path | None, heading: Heading) -> None:
        self.path = path
        self.known: dict[int, FileSegment] = {}
        self._heading = heading
        self._file: IO[bytes] | None = None
        self._read()

    def add(self, segment: FileSegment) -> None:
        """Keep one more segment."""
        self.known[segment.index] = segment
        if self.path is None:
            return
        if self._file is None:
            self._file = open(self.path, "wb")
            self._file.write(_line(self._heading))
        self._file.write(_line(segment))
        self._file.flush()

    def start_over(self) -> None:
        """Drop all segments, because they do not belong to the source as it is now."""
        self.done()
        self.known.clear()

    def done(self) -> None:
        """Close the file and delete it."""
        self.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> None:
        """Read the segments up to the first line that a kill cut off, and cut the file there, so that the next segment
        is appended after the last whole line."""
        if self.path is None or not self.path.exists():
            return
        # The file is read and truncated in place, so that a kill at any moment here loses no segment.
        self._file = open(self.path, "r+b")
        whole = 0
        for line in self._file:
            try:
                if not line.endswith(b"\n"):
                    break
                if whole:
                    segment = msgspec.json.decode(line, type=FileSegment)
                    self.known[segment.index] = segment
                elif msgspec.json.decode(line, type=Heading) != self._heading:
                    break
            except ValueError:
                break
            whole += len(line)
        self.known = {index: segment for index, segment in self.known.items() if segment.error is None}
        if whole:
            self._file.seek(whole)
            self._file.truncate()
        else:
            self.start_over()


def _line(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"
