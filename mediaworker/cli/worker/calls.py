"""`mediaworker calls`: which calls a worker has and had."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from mediaworker.cli.worker.connection import OK, add_arguments, asked
from mediaworker.cli.worker.records import call_line
from mediaworker.client import Client

PAGE = 50


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("calls", help="list the calls of a worker, the newest first")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many (default 20)")
    parser.add_argument("--text", metavar="WORDS", help="only calls in which these words were said")
    parser.add_argument("--json", action="store_true", help="each call as a line of JSON")
    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    async def ask(client: Client) -> int:
        left, after = args.limit, None
        while left > 0:
            calls, after = await client.calls(limit=min(left, PAGE), after=after, text=args.text)
            for call in calls:
                print(msgspec.json.encode(call).decode() if args.json else call_line(call))
            left -= len(calls)
            if after is None or not calls:
                break
        return OK

    return asked(args, ask, "events")
