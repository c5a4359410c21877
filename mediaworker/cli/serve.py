"""`mediaworker serve`: the worker, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from config import Settings, load
from config.child_process import forbid_tracing
from mediaworker.cli.terminal.output import CommandError
from mediaworker.cli.terminal.parser import STOPPED, add_config
from mediaworker.ops.blas import one_thread

if TYPE_CHECKING:
    from mediaworker.service.serve import Service


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = STOPPED
    add_config(parser)


def run(args: argparse.Namespace) -> int:
    forbid_tracing()
    settings = load(args.config)
    one_thread()
    from mediaworker.service.worker import Worker

    return served(settings, lambda: load(args.config), Worker)


def served(settings: Settings, read: Callable[[], Settings], make: Callable[[Settings], Service]) -> int:
    """`mediaworker.service.serve.serve`. Raises ConfigError, CommandError."""
    from mediaworker.service.serve import StartError, serve

    try:
        return serve(settings, read, make)
    except StartError as error:
        raise CommandError(str(error)) from None
