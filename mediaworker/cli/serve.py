"""`mediaworker serve`: the worker, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from config import ConfigError, load


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("serve", help="run the worker")
    parser.add_argument("--config", metavar="FILE", help="TOML file (default: ./mediaworker.toml when it is there)")


def run(args: argparse.Namespace) -> int:
    try:
        settings = load(args.config)
    except ConfigError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 2
    # Before numpy is imported: the VAD's small products are slower on several threads, and the loop needs its core.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from mediaworker.worker import StartError, serve

    try:
        return serve(settings, lambda: load(args.config))
    except ConfigError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 2
    except StartError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 1
