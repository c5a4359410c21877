"""Names of the results of `mediaworker transcribe`: each depends only on its file's path as it was typed.

A relative path keeps its folders (`a/x.wav` becomes `DIR/a/x.txt`); an absolute path, or one that leads out of the
current folder, keeps its last part (`/srv/x.wav` and `../x.wav` become `DIR/x.txt`). So a file's result does not depend
on the rest of the command line, and another run finds the finished results. If a name leaves no room for the suffixes
in the 255 bytes that file systems allow, its end is replaced by a hash.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from mediaworker.cli.terminal.output import UsageError

MAX_BYTES = 240
"""The longest name without suffixes; the longest suffixes are those of `.NAME.json.part`."""


class ResultClash(UsageError):
    """Two files would have the same result; the message names them and says what to do."""


def result_name(path: PurePath) -> PurePath:
    """The path of a file's results below the output folder, without the format's suffix."""
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
    """The path of a file's result in one format."""
    name = result_name(path)
    return folder / name.with_name(f"{name.name}.{format}")


def distinct(files: Iterable[Path]) -> list[Path]:
    """The files in their order, without repetitions of the same file with the same result."""
    found: dict[tuple[str, PurePath], Path] = {}
    for path in files:
        found.setdefault((os.path.realpath(path), result_name(path)), path)
    return list(found.values())


def check(files: Sequence[Path], folder: Path, formats: Sequence[str]) -> None:
    """Raises ResultClash if a result would replace another result, a source file, or another result's folder."""
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
