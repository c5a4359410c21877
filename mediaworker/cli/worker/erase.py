"""`mediaworker erase`: everything that an ended call has left is erased."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from mediaworker.cli.worker.connection import FAILED, OK, add_arguments, asked
from mediaworker.cli.worker.records import call_line, find_call
from mediaworker.client import Client


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("erase", help="erase everything that an ended call has left")
    parser.add_argument("call", metavar="CALL", help="its id, or the last characters of it")
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")
    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if not args.yes and not sys.stdin.isatty():
        raise argparse.ArgumentError(None, "--yes is needed where nobody can be asked")

    async def ask(client: Client) -> int:
        call = await client.call(await find_call(client, args.call))
        print(call_line(call))
        question = "Erase it, in every place? It cannot be undone. [y/N] "
        if not args.yes and (await asyncio.to_thread(input, question)).strip().lower() != "y":
            print("nothing was erased")
            return FAILED
        await client.erase(call.call_id)
        print("erased")
        return OK

    return asked(args, "admin", ask)
