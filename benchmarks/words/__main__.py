"""How many words each engine gets wrong: offline, and through real calls of every kind. See docs/measurements/words.md.

A worker of its own is started for each engine and language; prompts, joined with pauses, are played to it in real time,
several calls at once. Exit code: 0 measured, 1 something failed, 2 wrong arguments or nothing to play.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: as in the worker
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.words import live, prompts, table
from benchmarks.words.calls import CONDITIONS, LINES
from benchmarks.words.jobs import ENGINES, jobs, known
from benchmarks.words.measure import Job, measure
from benchmarks.words.prompts import NoPrompts, Prompt

OK, FAILED, USAGE = 0, 1, 2
CALLS = 8


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    if args.entities:
        from benchmarks.entities.run import main as measure_entities

        return measure_entities(args.model or "", args.markdown or "", verbose=args.verbose)
    with tempfile.TemporaryDirectory(prefix="mediaworker-words-") as folder:
        try:
            spoken = {language: _prompts(args, language, Path(folder)) for language in _languages(args)}
            planned = list(jobs(args, {language: len(found) for language, found in spoken.items()}))
        except (NoPrompts, ValueError) as error:
            print(f"words: {error}", file=sys.stderr)
            return USAGE
        return _run(args, planned, spoken)


def _run(args: argparse.Namespace, planned: Sequence[Job], spoken: dict[str, list[Prompt]]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # the worker is stopped on the way out
    rows: list[table.Row] = []

    def add(row: table.Row) -> None:
        rows.append(row)
        print(table.terminal([row]).splitlines()[1], file=sys.stderr, flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps(table.plain(rows), indent=1), encoding="utf-8")
        if args.markdown:
            Path(args.markdown).write_text(table.markdown(rows), encoding="utf-8")

    status = OK
    for job in planned:
        try:
            measure(job, spoken[job.language], args.calls, add)
        except (live.LiveFailed, subprocess.SubprocessError) as error:
            print(f"words: {job.name}, {table.NAMES[job.language]}: {error}", file=sys.stderr)
            status = FAILED  # the others may go well
    print(table.terminal(rows))
    if args.verbose:
        for row in rows:
            print(f"\n{row.language}: {row.engine}, {row.path}, {row.condition}\n{table.worst(row, 15)}")
            if row.added_words:
                print(f"added by the path:\n{table.explained(row)}")
    return status


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m benchmarks.words", description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--model", metavar="DIR", help="measure Qwen3-ASR with the weights in this folder as well")
    options.add_argument("--only-model", action="store_true", help="with --model: leave Moonshine out")
    options.add_argument("--languages", metavar="CODE,…", help=f"of {', '.join(prompts.LANGUAGES)}: one table each")
    options.add_argument("--engines", metavar="NAME,…", help=f"of {', '.join(ENGINES)}")
    options.add_argument("--audio", metavar="DIR", type=Path, help="own recordings instead, each with a .txt beside it")
    options.add_argument("--prompts", metavar="NAME,…", help="these prompts only")
    options.add_argument("--lines", metavar="LINE,…", help=f"of {', '.join(LINES)}; with --conditions, all of both")
    options.add_argument("--conditions", metavar="NAME,…", help=f"of {', '.join(CONDITIONS)}")
    options.add_argument("--share", type=float, metavar="P", help="part of the prompts, 0 to 1, in every row")
    options.add_argument("--calls", type=int, default=CALLS, metavar="N", help=f"at once (default {CALLS})")
    options.add_argument("--entities", action="store_true", help="numbers, names and addresses, offline (minutes)")
    options.add_argument("--quick", action="store_true", help="a tenth of the prompts in five rows (minutes)")
    options.add_argument("--json", metavar="FILE", help="every row, with every prompt")
    options.add_argument("--markdown", metavar="FILE", help="the table for docs")
    options.add_argument("--verbose", action="store_true", help="the worst prompts, and what the path has added")
    return options


def _languages(args: argparse.Namespace) -> list[str]:
    """Raises ValueError."""
    return known("--languages", args.languages or "en", prompts.LANGUAGES)


def _prompts(args: argparse.Namespace, language: str, folder: Path) -> list[Prompt]:
    if args.audio:
        found = prompts.own(args.audio, language)
    elif language in prompts.SYNTHESISED:
        found = prompts.synthesised(language, folder)
    else:
        found = prompts.recorded(language, short=bool(args.prompts))
    if not args.prompts:
        return found
    by_name = {prompt.name: prompt for prompt in found}
    if missing := [name for name in args.prompts.split(",") if name not in by_name]:
        raise ValueError(f"--prompts: there is no {', '.join(missing)}")
    return [by_name[name] for name in args.prompts.split(",")]


if __name__ == "__main__":
    sys.exit(main())
