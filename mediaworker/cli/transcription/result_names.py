"""Names of the results of `mediaworker transcribe`: each from its file's path as it was typed, and from nothing else.

A relative path keeps its folders (`a/x.wav` becomes `DIR/a/x.txt`); an absolute path, or one that leads out of the
current folder, keeps its last part (`/srv/x.wav` and `../x.wav` become `DIR/x.txt`). So the same file has the same
result whatever else is on the command line, and another run finds what is finished. A name that leaves no room for the
suffixes in the 255 bytes of a file system ends with a mark of its own instead of its last letters.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from mediaworker.cli.terminal.output import UsageError

MAX_BYTES = 240
"""Of a name without suffixes: the longest are those of `.NAME.json.part`."""


class ResultClash(UsageError):
    """Two files would have one result; the message names them and says what to do."""


def result_name(path: PurePath) -> PurePath:
    """Of a file's results below their folder, without the format's suffix."""
    plain = PurePath(os.path.normpath(path))
    if plain.is_absolute() or ".." in plain.parts:
        plain = PurePath(plain.name)
    return plain.with_name(_short(plain.stem))


def _short(name: str) -> str:
    data = os.fsencode(name)
    if len(data) <= MAX_BYTES:
        return name
    mark = hashlib.sha256(data).hexdigest()[:8]
    return f"{data[: MAX_BYTES - len(mark) - 1].decode('utf-8', 'ignore')}~{mark}"


def target(folder: Path, path: PurePath, format: str) -> Path:
    """Where a file's result goes."""
    name = result_name(path)
    return folder / name.with_name(f"{name.name}.{format}")


def distinct(files: Iterable[Path]) -> list[Path]:
    """In their order, without those that are the same file with the same result as one before."""
    found: dict[tuple[str, PurePath], Path] = {}
    for path in files:
        found.setdefault((os.path.realpath(path), result_name(path)), path)
    return list(found.values())


def check(files: Sequence[Path], folder: Path, formats: Sequence[str]) -> None:
    """Raises ResultClash when one result would replace another, stand where another's folder is, or replace a file."""
    sources = {os.path.realpath(path): path for path in files}
    results: dict[str, Path] = {}
    for path in files:
        for format in formats:
            result = target(folder, path, format)
            real = os.path.realpath(result)
            if (other := results.setdefault(real, path)) is not path:
                raise ResultClash(
                    f"{other} and {path} would both be written to {result}: give them in two runs with different "
                    "output folders, or by paths relative to a folder above both"
                )
            if real in sources:
                raise ResultClash(f"the result of {path} would replace {sources[real]}: choose another output folder")
    for real, path in results.items():
        for parent in PurePath(real).parents:
            if (other := results.get(str(parent), path)) is not path:
                raise ResultClash(f"the result of {other} would stand where the folder for that of {path} must be")
