"""`mediaworker transcript`: what was said in a call."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from mediaworker.cli.terminal.output import for_output
from mediaworker.cli.worker.connection import OK, add_arguments, asked
from mediaworker.cli.worker.records import find_call
from mediaworker.client import Client


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("transcript", help="print what was said in a call")
    parser.add_argument("call", metavar="CALL", help="its id, or the last characters of it")
    parser.add_argument("--format", choices=("txt", "json", "srt", "vtt"), default="txt", help="default: txt")
    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    async def ask(client: Client) -> int:
        text = await client.transcript(await find_call(client, args.call), args.format)
        print(for_output(text, sys.stdout).rstrip("\n"))
        return OK

    return asked(args, ask, "events")
