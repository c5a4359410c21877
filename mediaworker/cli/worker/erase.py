"""`mediaworker erase`: erase everything that is stored of an ended call."""

from __future__ import annotations

import argparse
import sys

from mediaworker.cli.terminal.output import FAILED
from mediaworker.cli.worker import connection
from mediaworker.cli.worker.calls import call_line, find_call, is_call_id
from mediaworker.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("call", metavar="CALL", help="its id, or the last characters of it")
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")
    connection.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if not args.yes and not sys.stdin.isatty():
        raise argparse.ArgumentError(None, "--yes is needed where nobody can be asked")

    found = [args.call] if args.yes and is_call_id(args.call) else []

    async def show(client: Client) -> None:
        call = await client.call(await find_call(client, args.call))
        print(call_line(call))
        found.append(call.call_id)

    async def erase(client: Client) -> None:
        await client.erase(found[0])
        print("erased")

    # A key that may erase calls need not be one that may read them.
    if not found:
        connection.ask(args, show, "events", "admin")
    # The question is asked outside of the event loop, so that Ctrl-C ends the command at once.
    if not args.yes and input("Erase it, in every place? It cannot be undone. [y/N] ").strip().lower() != "y":
        print("nothing was erased")
        return FAILED
    return connection.ask(args, erase, "admin")
