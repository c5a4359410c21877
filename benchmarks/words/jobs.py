"""What is measured: the engines of each language, and the rows of each engine."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from benchmarks.words import prompts
from benchmarks.words.calls import CLEAN, CONDITIONS, LINES, LOSSES, NOISES
from benchmarks.words.measure import Job, Step
from config.settings import Asr

SHARE = 1 / 6
"""Of the prompts, where all of them would take too long."""
QUICK = 0.1
ON_CLEAN_LINE, ELSEWHERE = 90, 36
"""Prompts of a language in a row, about, in a run of several languages: each takes seven minutes on two cores."""
ENGINES = {"moonshine": ("en",), "whisper": prompts.LANGUAGES, "mixed": prompts.LANGUAGES}
"""The languages that an engine knows."""
DETECTING = ("whisper", "mixed")


def jobs(args: argparse.Namespace, counts: Mapping[str, int]) -> Iterator[Job]:
    """`counts`: how many prompts a language has. Raises ValueError."""
    if args.calls < 1:
        raise ValueError(f"--calls {args.calls}: expected 1 or more")
    if args.share is not None and not 0 < args.share <= 1:
        raise ValueError(f"--share {args.share:g}: expected more than 0 and at most 1")
    if args.only_model and not args.model:
        raise ValueError("--only-model: which one? See --model")
    for language, count in counts.items():
        if not (steps := list(_steps(args, count))):
            raise ValueError("--conditions: a Twilio stream is a WebSocket and loses nothing")
        if not (engines := list(_engines(args, language))):
            raise ValueError(f"--engines: none of these knows the language {language!r}")
        for name, asr in engines:
            # Given another language than English, both together are Whisper.
            if asr.engine != "mixed" or language == "en":
                yield Job(name, asr, language, steps)
            if asr.engine in DETECTING:
                noisy = [step for step in steps[1:] if step[1].name == "babble-10" and asr.engine == "mixed"]
                share = min(share for *_, share in steps)
                detected = [(line, condition, share) for line, condition, _ in (steps[0], *noisy)]
                yield Job(f"{name}, detecting", Asr(engine=asr.engine), language, detected)


def _engines(args: argparse.Namespace, language: str) -> Iterator[tuple[str, Asr]]:
    """Raises ValueError."""
    usual = ",".join(name for name in ENGINES if language in ENGINES[name]) if args.languages else "moonshine"
    for name in [] if args.only_model else known("--engines", args.engines or usual, ENGINES):
        if language in ENGINES[name]:
            yield name, Asr(engine=name, language=language)
    if args.model:
        folder = Path(args.model).resolve()
        if not folder.is_dir():
            raise ValueError(f"--model {args.model}: no such folder")
        yield folder.name, Asr(engine="qwen", model=str(folder), language=language)


def _steps(args: argparse.Namespace, count: int) -> Iterator[Step]:
    """Raises ValueError."""
    few = bool(args.prompts or args.audio)
    if args.lines or args.conditions:
        for name in known("--conditions", args.conditions or "clean", CONDITIONS):
            for line in known("--lines", args.lines or "pcmu", LINES):
                if not (LINES[line].twilio and CONDITIONS[name].loss):  # TCP loses nothing
                    yield line, CONDITIONS[name], args.share or 1.0
        return
    if args.quick:
        share = args.share or (1.0 if few else QUICK)
        yield from [(line, CLEAN, share) for line in (("pcmu",) if args.languages else ("pcmu", "opus", "twilio"))]
        yield from [("pcmu", CONDITIONS[name], share) for name in ("loss-3", "babble-10")]
        return
    if args.languages:
        many, some = (args.share or (1.0 if few else min(1.0, each / count)) for each in (ON_CLEAN_LINE, ELSEWHERE))
        yield "pcmu", CLEAN, many
        yield from [("pcmu", CONDITIONS[name], some) for name in ("loss-3", "babble-20", "babble-10")]
        return
    some = args.share or (1.0 if few else SHARE)
    if some < 1 and not args.share:
        yield "pcmu", CLEAN, 1.0
    yield from [(line, CLEAN, some) for line in LINES]
    yield from [(line, condition, some) for line in ("pcmu", "opus") for condition in LOSSES]
    yield from [("pcmu", condition, some) for condition in NOISES]


def known(option: str, given: str, names: Collection[str]) -> list[str]:
    """Raises ValueError."""
    if unknown := [name for name in given.split(",") if name not in names]:
        raise ValueError(f"{option}: there is no {', '.join(unknown)}; there are {', '.join(names)}")
    return given.split(",")
