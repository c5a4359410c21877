"""Looks for what somebody said, or for the bytes of a recording, in every file that a program may have left it in."""

from __future__ import annotations

import base64
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

DEFLATED = 32 + zlib.MAX_WBITS
"""zlib's own header, or gzip's."""
SHORTEST = 6
"""Bytes: anything less is found anywhere."""


def found(marks: Iterable[str | bytes], *folders: Path, processes: Iterable[int] = ()) -> dict[str, list[str]]:
    """Each mark that is anywhere → the files that have it. `processes`: their files without a name are read, too."""
    contents = {str(path): data for path, data in _contents(folders, processes)}
    return {
        str(mark): where
        for mark in marks
        if (where := [path for path, data in contents.items() if any(form in data for form in forms(mark))])
    }


def forms(mark: str | bytes) -> set[bytes]:
    """As it is, as JSON writes it, in UTF-16, and in base64 at each of its three offsets."""
    raw = mark.encode() if isinstance(mark, str) else mark
    written = {raw}
    if isinstance(mark, str):
        written |= {json.dumps(mark)[1:-1].encode(), mark.encode("utf-16-le")}
    for offset in range(3):
        coded = base64.b64encode(b"\0" * offset + raw)
        written.add(coded[4 if offset else 0 : -4])  # without what depends on what lies beside it
    return {form for form in written if len(form) >= SHORTEST}


def _contents(folders: Iterable[Path], processes: Iterable[int]) -> Iterator[tuple[Path, bytes]]:
    paths = [path for folder in folders for path in folder.rglob("*")]
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            if "(deleted)" in _target(descriptor):
                paths.append(descriptor)
    for path in paths:
        try:
            if stat.S_ISREG(path.stat().st_mode):
                data = path.read_bytes()
                yield path, data + _inflated(data)
        except FileNotFoundError:
            continue  # it has just gone


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def _inflated(data: bytes) -> bytes:
    """What follows wherever deflated data may begin."""
    parts = []
    for header in (b"\x1f\x8b\x08", b"\x78\x01", b"\x78\x9c", b"\x78\xda"):
        at = data.find(header)
        while at >= 0:
            try:
                parts.append(zlib.decompressobj(DEFLATED).decompress(data[at:]))
            except zlib.error:
                pass
            at = data.find(header, at + 1)
    return b"".join(parts)
