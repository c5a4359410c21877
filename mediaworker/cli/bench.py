"""`mediaworker bench`: measure this machine. Only a checkout contains the benchmarks, not the installed package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mediaworker.cli.terminal.output import UsageError

CHECKOUT = Path(__file__).parents[2]


def is_checkout() -> bool:
    """Whether this package belongs to a checkout; if so, the folder `benchmarks` is made importable."""
    if not (CHECKOUT / "benchmarks" / "command.py").is_file():
        return False
    sys.path.insert(0, str(CHECKOUT))
    return True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    if not is_checkout():
        raise UsageError("only a checkout of mediaworker has the benchmarks")
    from benchmarks import command

    command.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from benchmarks import command

    return command.run(args)
