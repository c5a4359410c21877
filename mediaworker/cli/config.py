"""`mediaworker config`: what is in force, or what is wrong with it."""

from __future__ import annotations

import argparse
from typing import Any

from config import ConfigError, describe, load
from mediaworker.cli.terminal.output import print_error


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("config", help="print the effective configuration, secrets masked")
    parser.add_argument("--config", metavar="FILE", help="TOML file (default: ./mediaworker.toml when it is there)")


def run(args: argparse.Namespace) -> int:
    from mediaworker.service.reload import check

    try:
        settings = load(args.config)
        check(settings)
        print(describe(settings), end="")
    except ConfigError as error:
        print_error(str(error))
        return 2
    return 0
