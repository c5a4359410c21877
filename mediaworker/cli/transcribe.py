"""`mediaworker transcribe`: turn files into text and subtitles on this machine, without a worker.

Files to text and subtitles. Interrupted, the same command goes on where it was.

Exit code: 0 all done, 1 the engine or this machine failed, 2 wrong arguments, 3 some files could not be read, 4
something said in them could not be recognised, 5 some results could not be written or would replace files that this
command has not made, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from config import Settings, load
from config.process.child_process import forbid_tracing
from config.settings import Log
from mediaworker.cli.terminal.output import CommandError, UsageError, print_error
from mediaworker.cli.transcription import INTERRUPTED, UNREADABLE
from mediaworker.cli.transcription.result_names import check, distinct
from mediaworker.ops.blas import one_thread

FORMATS = ("txt", "json", "srt", "vtt")
STDIN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="audio or video, a folder, or - (standard input)")
    written = "write DIR/NAME.FORMAT, with the folders of a relative FILE (default: print)"
    parser.add_argument("-o", "--output", metavar="DIR", help=written)
    parser.add_argument("--format", action="append", choices=FORMATS, help="may be given more than once (default: txt)")
    parser.add_argument("--language", default="", metavar="LANGUAGE", help="en, German, …; default (auto): found out")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="names and words to expect")
    parser.add_argument("--channels", choices=("mix", "split"), default="mix", help="split: each channel is a speaker")
    parser.add_argument("--speaker", action="append", default=[], metavar="NAME", help="of a channel, in their order")
    parser.add_argument("--force", action="store_true", help="also what has been transcribed already")
    parser.add_argument("--config", metavar="FILE", help="configuration file")


class NoFiles(CommandError):
    """The arguments name no file to transcribe."""

    code = UNREADABLE


def run(args: argparse.Namespace) -> int:
    forbid_tracing()
    with tempfile.TemporaryDirectory(prefix="mediaworker-") as spool:
        return _run(args, spool)


def _run(args: argparse.Namespace, spool: str) -> int:
    """Run the command with `spool` as the folder for standard input. Raises ConfigError, CommandError."""
    settings = load(args.config)
    one_thread()
    from asr import languages
    from mediaworker.cli.transcription.batch import Batch
    from mediaworker.files.options import Options
    from mediaworker.ops import logs

    _check_arguments(args, settings)
    _spool_stdin(args.files, spool)
    logs.configure(Log(level="error"))
    settings = replace(settings, log=replace(settings.log, level="error"))
    formats = tuple(dict.fromkeys(args.format or ["txt"]))
    files, folder = _paths(args, formats)
    options = Options(
        language=languages.requested(args.language),
        prompt=args.prompt,
        channels=args.channels,
        speakers=args.speaker,
        words=True,
    )
    try:
        return asyncio.run(Batch(settings, files, folder, formats, options, force=args.force, spool=Path(spool)).run())
    except KeyboardInterrupt:
        print_error("interrupted; the same command goes on where it was")
        return INTERRUPTED


def _check_arguments(args: argparse.Namespace, settings: Settings) -> None:
    from asr import languages
    from asr.engines.plugin import find
    from asr.engines.selection import select, unknown_language

    engine = select(settings.asr).engine
    if why := unknown_language(languages.requested(args.language), engine, find(engine).languages):
        raise UsageError(f"--language: {why}")
    if args.speaker and args.channels != "split":
        raise UsageError("--speaker goes with --channels split")


def _spool_stdin(names: list[str], folder: str) -> None:
    """Keep what comes by standard input in a file, and put that one's name in the place of `-`."""
    if STDIN not in names:
        return
    if names.count(STDIN) > 1 or sys.stdin.isatty():
        raise UsageError("- is one file on standard input: redirect or pipe it in")
    path = Path(folder) / "stdin"  # FFmpeg has to go back in most formats
    names[names.index(STDIN)] = str(path)
    try:
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    except OSError as error:
        raise CommandError(f"standard input: {error.strerror or error}") from None


def _paths(args: argparse.Namespace, formats: tuple[str, ...]) -> tuple[list[Path], Path | None]:
    """The files to transcribe, and the folder for the results, which is created."""
    files = distinct(_files(args.files))
    if not files:
        raise NoFiles("there are no files in it")
    if not args.output:
        return files, None
    folder = Path(args.output)
    try:
        check(files, folder, formats)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{args.output}: {error.strerror}") from None
    return files, folder


def _files(names: list[str]) -> Iterator[Path]:
    """The named files; a folder stands for its files, except hidden ones and those with a suffix of our results."""
    for name in names:
        path = Path(name)
        if not path.is_dir():
            yield path
            continue
        for each in sorted(path.iterdir()):
            if each.is_file() and not each.name.startswith(".") and each.suffix[1:].lower() not in FORMATS:
                yield each
