"""`mediaworker config`: what is in force, or what is wrong with it."""

from __future__ import annotations

import argparse

from config import describe, load
from mediaworker.cli.arguments.parser import add_config as add_arguments
from mediaworker.cli.terminal import OK

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    from mediaworker.ops.reload import check

    settings = load(args.config)
    check(settings)
    print(describe(settings), end="")
    return OK
