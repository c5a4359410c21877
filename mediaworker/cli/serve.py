"""`mediaworker serve`: the worker, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
from typing import Any

from config import ConfigError, load
from config.child_process import forbid_tracing
from mediaworker.cli.terminal.output import print_error
from mediaworker.cli.terminal.parser import STOPPED
from mediaworker.ops.blas import one_thread


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("serve", help="run the worker", epilog=STOPPED)
    parser.add_argument("--config", metavar="FILE", help="TOML file (default: ./mediaworker.toml when it is there)")


def run(args: argparse.Namespace) -> int:
    forbid_tracing()
    try:
        settings = load(args.config)
    except ConfigError as error:
        print_error(str(error))
        return 2
    one_thread()
    from mediaworker.service.serve import StartError, serve
    from mediaworker.service.worker import Worker

    try:
        return serve(settings, lambda: load(args.config), Worker)
    except ConfigError as error:
        print_error(str(error))
        return 2
    except StartError as error:
        print_error(str(error))
        return 1
