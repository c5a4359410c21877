"""`mediaworker engine`: an engine server that workers on this and other machines share, until SIGTERM or Ctrl-C.

Exit code: 0 stopped by SIGTERM or Ctrl-C, 1 it could not start, 2 wrong arguments or configuration.
"""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from config import Settings, load
from config.load import checked
from config.process.child_process import forbid_tracing
from mediaworker.cli.serve import served
from mediaworker.cli.terminal.parser import add_config

DEFAULT_LISTEN = "tcp://127.0.0.1:9095"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    listen = f"as asr.listen in the configuration (default: {DEFAULT_LISTEN})"
    parser.add_argument("--listen", metavar="ADDRESS", help=listen)


def run(args: argparse.Namespace) -> int:
    forbid_tracing()

    def read() -> Settings:
        settings = load(args.config)
        listen = args.listen or settings.asr.listen or DEFAULT_LISTEN
        return checked(replace(settings, asr=replace(settings.asr, listen=listen)))

    settings = read()
    from mediaworker.service.engine import EngineService

    return served(settings, read, EngineService)
