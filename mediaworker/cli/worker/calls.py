"""`mediaworker calls`: which calls a worker has and had."""

from __future__ import annotations

import argparse

import msgspec

from mediaworker.cli.worker import connection
from mediaworker.cli.worker.records import call_line
from mediaworker.client import Client

PAGE = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many (default 20)")
    parser.add_argument("--text", metavar="WORDS", help="only calls in which these words were said")
    parser.add_argument("--json", action="store_true", help="each call as a line of JSON")
    connection.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    async def list_calls(client: Client) -> None:
        left, after = args.limit, None
        while left > 0:
            calls, after = await client.calls(limit=min(left, PAGE), after=after, text=args.text)
            for call in calls:
                print(msgspec.json.encode(call).decode() if args.json else call_line(call))
            left -= len(calls)
            if after is None or not calls:
                break

    return connection.ask(args, list_calls, "events")
