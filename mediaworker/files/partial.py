"""What is known of a file whose transcript is not complete: one line per segment, in a file beside the result.

A line that a kill cut off is not there; one of another file, or of the same after it changed, or asked for otherwise,
does not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

import msgspec

from mediaworker.files.options import Options
from mediaworker.files.segments import FileSegment


class Heading(msgspec.Struct, frozen=True):
    """What the segments are of."""

    path: str
    bytes: int
    mtime_ns: int
    engine: str
    options: Options


class PartialFile:
    """The file at `path`; None: it is nowhere, and a kill costs everything. Raises OSError."""

    def __init__(self, path: Path | None, heading: Heading) -> None:
        self.path = path
        self.known: dict[int, FileSegment] = {}
        self._heading = heading
        self._file: IO[bytes] | None = None
        self._read()

    def add(self, segment: FileSegment) -> None:
        """It is known from now on."""
        self.known[segment.index] = segment
        self._write(segment)

    def start_over(self) -> None:
        """What is known is not of this file."""
        self.close()
        self.known.clear()
        self._unlink()

    def done(self) -> None:
        """The transcript is complete."""
        self.close()
        self._unlink()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _unlink(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _read(self) -> None:
        """What is there, up to the first line that a kill cut off; that one goes, and the next takes its place."""
        if self.path is None or not self.path.exists():
            return
        # In place: a kill in here costs nothing.
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

    def _write(self, segment: FileSegment) -> None:
        if self.path is None:
            return
        if self._file is None:
            self._file = open(self.path, "wb")
            self._line(self._heading)
        self._line(segment)
        self._file.flush()

    def _line(self, value: msgspec.Struct) -> None:
        assert self._file is not None
        self._file.write(msgspec.json.encode(value) + b"\n")
