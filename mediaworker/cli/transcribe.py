"""`mediaworker transcribe`: files to text and subtitles, here and now, without a worker.

Exit codes: 0 all done; 1 the engine or this machine failed; 2 wrong arguments; 3 some files could not be read; 4 all
were read, but some of what was said in them could not be recognised; 130 interrupted, and the same command goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from config import ConfigError, load
from config.child_process import forbid_tracing
from config.settings import Log
from mediaworker.cli.terminal import print_error
from mediaworker.cli.transcription.result_names import Clash, check, distinct
from mediaworker.ops.blas import one_thread

FORMATS = ("txt", "json", "srt", "vtt")
STDIN = "-"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "transcribe",
        help="files to text and subtitles",
        description="Files to text and subtitles. Interrupted, the same command goes on where it was.",
        epilog="exit codes: 0 all done, 1 the engine or this machine failed, 2 wrong arguments, 3 some files could not "
        "be read, 4 something said in them could not be recognised",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="audio or video, a folder, or - (standard input)")
    written = "write DIR/NAME.FORMAT, with the folders of a relative FILE (default: print)"
    parser.add_argument("-o", "--output", metavar="DIR", help=written)
    parser.add_argument("--format", action="append", choices=FORMATS, help="may be given more than once (default: txt)")
    parser.add_argument("--language", default="", metavar="CODE", help="en, de, …; default: found out")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="names and words to expect")
    parser.add_argument("--channels", choices=("mix", "split"), default="mix", help="split: each channel is a speaker")
    parser.add_argument("--speaker", action="append", default=[], metavar="NAME", help="of a channel, in their order")
    parser.add_argument("--force", action="store_true", help="also what has been transcribed already")
    parser.add_argument("--config", metavar="FILE", help="configuration file")


def run(args: argparse.Namespace) -> int:
    forbid_tracing()
    with tempfile.TemporaryDirectory(prefix="mediaworker-") as spool:
        return _run(args, spool)


def _run(args: argparse.Namespace, spool: str) -> int:
    try:
        settings = load(args.config)
    except ConfigError as error:
        print_error(str(error))
        return 2
    one_thread()
    from asr import languages
    from asr.engines.plugin import find
    from asr.engines.selection import select, unknown_language
    from mediaworker.cli.transcription.batch import FAILED, INTERRUPTED, UNREADABLE, WRONG, Batch
    from mediaworker.files.options import Options
    from mediaworker.ops import logs

    try:
        engine = select(settings.asr).engine
    except ConfigError as error:
        print_error(str(error))
        return WRONG
    if why := unknown_language(args.language, engine, find(engine).languages):
        print_error(f"--language: {why}")
        return WRONG
    if args.speaker and args.channels != "split":
        print_error("--speaker goes with --channels split")
        return WRONG
    if STDIN in args.files:
        if args.files.count(STDIN) > 1 or sys.stdin.isatty():
            print_error("- is one file on standard input: redirect or pipe it in")
            return WRONG
        try:
            args.files[args.files.index(STDIN)] = _from_stdin(spool)
        except OSError as error:
            print_error(f"standard input: {error.strerror or error}")
            return FAILED
    logs.configure(Log(level="error"))
    settings = replace(settings, log=replace(settings.log, level="error"))
    files = distinct(_files(args.files))
    if not files:
        print_error("there are no files in it")
        return UNREADABLE
    formats = tuple(dict.fromkeys(args.format or ["txt"]))
    folder = Path(args.output) if args.output else None
    if folder is not None:
        try:
            check(files, folder, formats)
        except Clash as clash:
            print_error(str(clash))
            return WRONG
    try:
        if args.output:
            os.makedirs(args.output, exist_ok=True)
    except OSError as error:
        print_error(f"{args.output}: {error.strerror}")
        return FAILED
    options = Options(
        language=languages.base(args.language),
        prompt=args.prompt,
        channels=args.channels,
        speakers=args.speaker,
        words=True,
    )
    try:
        return asyncio.run(Batch(settings, files, folder, formats, options, force=args.force).run())
    except ConfigError as error:
        print_error(str(error))
        return WRONG
    except KeyboardInterrupt:
        print_error("interrupted; the same command goes on where it was")
        return INTERRUPTED


def _from_stdin(folder: str) -> str:
    """What comes by standard input, as a file: FFmpeg has to go back in most formats. Raises OSError."""
    path = Path(folder) / "stdin"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return str(path)


def _files(names: list[str]) -> Iterator[Path]:
    """A folder is what is in it, but for what is hidden and what we write."""
    for name in names:
        path = Path(name)
        if not path.is_dir():
            yield path
            continue
        for each in sorted(path.iterdir()):
            if each.is_file() and not each.name.startswith(".") and each.suffix[1:].lower() not in FORMATS:
                yield each
