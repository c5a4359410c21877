"""The command `mediaworker models check`, as far as it needs no model."""

from __future__ import annotations

import argparse
from pathlib import Path

from asr.engines.interface import EngineUnusable
from benchmarks.word_errors import prompts
from config import ConfigError, load
from mediaworker.cli.terminal.output import print_error


def run(args: argparse.Namespace) -> int:
    """0: fine; 1: an answer differs or too many words are wrong; 2: there is nothing to check."""
    try:
        settings = load(args.config)
        spoken = prompts.of_folder(Path(args.prompts)) if args.prompts else prompts.asterisk()
    except (ConfigError, OSError, ValueError) as error:
        print_error(str(error))
        return 2
    if not spoken:
        where = args.prompts or f"{prompts.SOUNDS} (Debian's package asterisk-core-sounds-en-wav)"
        print_error(f"there are no prompts in {where}: --prompts names a folder of NAME.wav with NAME.txt")
        return 2
    try:
        from benchmarks.word_errors.models_check import check
    except ImportError:
        print_error("checking needs the extra `qwen`: pip install 'mediaworker[qwen]'")
        return 2
    try:
        return check(args.name or settings.asr.model, spoken, settings.asr, settings.qwen)
    except EngineUnusable as error:
        print_error(str(error))
        return 2
