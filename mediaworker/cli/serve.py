"""`mediaworker serve`: run the worker until SIGTERM or Ctrl-C.

Exit code: 0 stopped by SIGTERM or Ctrl-C, 1 it could not start, 2 wrong arguments or configuration.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from config import Settings, load
from config.process.child_process import forbid_tracing
from mediaworker.cli.terminal.output import CommandError
from mediaworker.cli.terminal.parser import add_config as add_arguments
from mediaworker.ops.blas import one_thread

if TYPE_CHECKING:
    from mediaworker.service.serve import Service

__all__ = ["add_arguments", "run", "served"]


def run(args: argparse.Namespace) -> int:
    forbid_tracing()
    settings = load(args.config)
    one_thread()
    from mediaworker.service.worker import Worker

    return served(settings, lambda: load(args.config), Worker)


def served(settings: Settings, read: Callable[[], Settings], make: Callable[[Settings], Service]) -> int:
    """Run `mediaworker.service.serve.serve` and return its exit code. Raises ConfigError, CommandError."""
    from mediaworker.service.serve import StartError, serve

    try:
        return serve(settings, read, make)
    except StartError as error:
        raise CommandError(str(error)) from None
