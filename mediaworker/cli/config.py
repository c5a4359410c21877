"""`mediaworker config`: print the settings in force, or the mistake in them."""

from __future__ import annotations

import argparse

from config import describe, load
from mediaworker.cli.terminal.output import OK
from mediaworker.cli.terminal.parser import add_config as add_arguments

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    from mediaworker.service.reload import check

    settings = load(args.config)
    check(settings)
    print(describe(settings), end="")
    return OK
