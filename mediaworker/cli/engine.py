"""`mediaworker engine`: an engine server that workers on this and other machines share, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec.structs import replace

from config import ConfigError, Settings, load
from config.child_process import forbid_tracing
from config.load import checked
from mediaworker.cli.terminal.output import print_error
from mediaworker.cli.terminal.parser import STOPPED

DEFAULT_LISTEN = "tcp://127.0.0.1:9095"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("engine", help="an engine server that workers share", epilog=STOPPED)
    parser.add_argument("--config", metavar="FILE", help="TOML file (default: ./mediaworker.toml when it is there)")
    parser.add_argument(
        "--listen", metavar="ADDRESS", help=f"as asr.listen in the configuration (default: {DEFAULT_LISTEN})"
    )


def run(args: argparse.Namespace) -> int:
    forbid_tracing()

    def read() -> Settings:
        settings = load(args.config)
        listen = args.listen or settings.asr.listen or DEFAULT_LISTEN
        return checked(replace(settings, asr=replace(settings.asr, listen=listen)))

    try:
        settings = read()
    except ConfigError as error:
        print_error(str(error))
        return 2
    from mediaworker.service.engine import EngineService
    from mediaworker.service.serve import StartError, serve

    try:
        return serve(settings, read, EngineService)
    except ConfigError as error:
        print_error(str(error))
        return 2
    except StartError as error:
        print_error(str(error))
        return 1
