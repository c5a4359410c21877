"""`mediaworker transcript`: print the transcript of a call."""

from __future__ import annotations

import argparse
import sys

from mediaworker.cli.terminal.output import for_output
from mediaworker.cli.worker import connection
from mediaworker.cli.worker.calls import find_call
from mediaworker.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("call", metavar="CALL", help="its id, or the last characters of it")
    parser.add_argument("--format", choices=("txt", "json", "srt", "vtt"), default="txt", help="default: txt")
    connection.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    async def show(client: Client) -> None:
        text = await client.transcript(await find_call(client, args.call), args.format)
        print(for_output(text, sys.stdout).rstrip("\n"))

    return connection.ask(args, show, "events")
