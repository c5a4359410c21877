"""How many words each engine gets wrong: offline, and through real calls of every kind. See docs/measurements/words.md.

A worker of its own is started for each engine; prompts, joined with pauses, are played to it in real time, several
calls at once. Exit code: 0 measured, 1 something failed, 2 wrong arguments or nothing to play.
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
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.words import live, prompts, table
from benchmarks.words.calls import CLEAN, CONDITIONS, LINES, LOSSES, NOISES
from benchmarks.words.measure import Step, measure
from benchmarks.words.prompts import NoPrompts, Prompt
from config.settings import Asr

OK, FAILED, USAGE = 0, 1, 2
CALLS = 8
SHARE = 1 / 6
"""Of the prompts, where all of them would take too long."""
QUICK = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    if args.entities:
        from benchmarks.entities.run import main as measure_entities

        return measure_entities(args.model or "", args.markdown or "", verbose=args.verbose)
    try:
        chosen = _prompts(args)
        if not (steps := list(_steps(args))):
            raise ValueError("--conditions: a Twilio stream is a WebSocket and loses nothing")
        engines = _engines(args)
    except (NoPrompts, ValueError) as error:
        print(f"words: {error}", file=sys.stderr)
        return USAGE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # the worker is stopped on the way out
    rows: list[table.Row] = []

    def add(row: table.Row) -> None:
        rows.append(row)
        print(table.terminal([row]).splitlines()[1], file=sys.stderr, flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps(table.plain(rows), indent=1), encoding="utf-8")

    try:
        for name, asr in engines:
            measure(name, asr, chosen, steps, args.calls, add)
    except (live.LiveFailed, subprocess.SubprocessError) as error:
        print(f"words: {error}", file=sys.stderr)
        return FAILED
    print(table.terminal(rows))
    if args.verbose:
        for row in rows:
            print(f"\n{row.engine}, {row.path}, {row.condition}\n{table.worst(row, 15)}")
            if row.added_words:
                print(f"added by the path:\n{table.explained(row)}")
    if args.markdown:
        Path(args.markdown).write_text(table.markdown(rows), encoding="utf-8")
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.words", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", metavar="DIR", help="measure Qwen3-ASR with the weights in this folder as well")
    parser.add_argument("--only-model", action="store_true", help="with --model: leave Moonshine out")
    parser.add_argument("--audio", metavar="DIR", type=Path, help="own recordings instead, each with a .txt beside it")
    parser.add_argument("--prompts", metavar="NAME,…", help="these prompts only")
    parser.add_argument("--lines", metavar="LINE,…", help=f"of {', '.join(LINES)}; with --conditions, all of both")
    parser.add_argument("--conditions", metavar="NAME,…", help=f"of {', '.join(CONDITIONS)}")
    parser.add_argument("--share", type=float, metavar="P", help="part of the prompts, 0 to 1, in every row")
    parser.add_argument("--calls", type=int, default=CALLS, metavar="N", help=f"at once (default {CALLS})")
    parser.add_argument("--entities", action="store_true", help="numbers, names and addresses, offline (minutes)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the prompts in five rows (minutes)")
    parser.add_argument("--json", metavar="FILE", help="every row, with every prompt")
    parser.add_argument("--markdown", metavar="FILE", help="the table for docs")
    parser.add_argument("--verbose", action="store_true", help="the worst prompts, and what the path has added")
    return parser


def _prompts(args: argparse.Namespace) -> list[Prompt]:
    found = prompts.own(args.audio) if args.audio else prompts.recorded(short=bool(args.prompts))
    if not args.prompts:
        return found
    by_name = {prompt.name: prompt for prompt in found}
    if missing := [name for name in args.prompts.split(",") if name not in by_name]:
        raise ValueError(f"--prompts: there is no {', '.join(missing)}")
    return [by_name[name] for name in args.prompts.split(",")]


def _steps(args: argparse.Namespace) -> Iterator[Step]:
    """Raises ValueError."""
    if args.calls < 1:
        raise ValueError(f"--calls {args.calls}: expected 1 or more")
    if args.share is not None and not 0 < args.share <= 1:
        raise ValueError(f"--share {args.share:g}: expected more than 0 and at most 1")
    few = bool(args.prompts or args.audio)
    if args.lines or args.conditions:
        for name in _known("--conditions", args.conditions or "clean", CONDITIONS):
            for line in _known("--lines", args.lines or "pcmu", LINES):
                if not (LINES[line].twilio and CONDITIONS[name].loss):  # TCP loses nothing
                    yield line, CONDITIONS[name], args.share or 1.0
        return
    if args.quick:
        share = args.share or (1.0 if few else QUICK)
        yield from [(line, CLEAN, share) for line in ("pcmu", "opus", "twilio")]
        yield from [("pcmu", CONDITIONS[name], share) for name in ("loss-3", "babble-10")]
        return
    some = args.share or (1.0 if few else SHARE)
    if some < 1 and not args.share:
        yield "pcmu", CLEAN, 1.0
    yield from [(line, CLEAN, some) for line in LINES]
    yield from [(line, condition, some) for line in ("pcmu", "opus") for condition in LOSSES]
    yield from [("pcmu", condition, some) for condition in NOISES]


def _known(option: str, given: str, known: Sequence[str] | dict[str, object]) -> list[str]:
    if unknown := [name for name in given.split(",") if name not in known]:
        raise ValueError(f"{option}: there is no {', '.join(unknown)}; there are {', '.join(known)}")
    return given.split(",")


def _engines(args: argparse.Namespace) -> list[tuple[str, Asr]]:
    """Raises ValueError."""
    if args.only_model and not args.model:
        raise ValueError("--only-model: which one? See --model")
    engines = [] if args.only_model else [("moonshine", Asr(engine="moonshine", language="en"))]
    if args.model:
        folder = Path(args.model).resolve()
        if not folder.is_dir():
            raise ValueError(f"--model {args.model}: no such folder")
        engines.append((folder.name, Asr(engine="qwen", model=str(folder), language="en")))
    return engines


if __name__ == "__main__":
    sys.exit(main())
