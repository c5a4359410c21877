"""`mediaworker calls`: list the calls of a worker, live and ended."""

from __future__ import annotations

import argparse
import re

import msgspec

from config.log.text import printable
from mediaworker.cli.worker import connection
from mediaworker.client import CallRecord, Client

PAGE = 50
LATEST = 200
"""So many calls are looked through for the end of an id."""
_ID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


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


def is_call_id(text: str) -> bool:
    """Whether it is a whole id."""
    return _ID.fullmatch(text) is not None


async def find_call(client: Client, text: str) -> str:
    """The id of the call that is named by it, or by its last characters, as `watch` and `calls` show them.

    Raises:
        ValueError: there is none, or more than one; a sentence.
    """
    if is_call_id(text):
        return text
    found = [call.call_id for call in (await client.calls(limit=LATEST))[0] if call.call_id.endswith(text)]
    if len(found) == 1:
        return found[0]
    which = "more than one" if found else "none"
    raise ValueError(f"{which} of the {LATEST} latest calls has an id that ends with {text}")


def call_line(call: CallRecord) -> str:
    """One call in one line."""
    length = f"{call.duration_ms / 1000:.1f} s" if call.duration_ms is not None else call.state
    said = f"  {call.said.text}" if call.said is not None else ""
    people = f"{call.from_ or '?'} → {call.to or '?'}"
    return printable(f"{call.call_id}  {call.started_at[:19]}  {length:>9}  {call.source:8}  {people}{said}")
