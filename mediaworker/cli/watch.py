"""`mediaworker watch`: print live events in the terminal, and resume by cursor when the connection drops.

Exit code: 0 the connection has ended (with --once) or nobody reads the output any more, 1 the worker refuses or cannot
be reached, 2 wrong arguments or configuration, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from typing import Any

from config.log.text import coloured, printable_json
from mediaworker.cli.terminal import trust
from mediaworker.cli.terminal.output import OK, print_error, print_now
from mediaworker.cli.worker import connection
from mediaworker.cli.worker.connection import WorkerAddress
from mediaworker.client import CursorExpired, EventStream
from mediaworker.errors import MediaworkerError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    connection.add_arguments(parser, "url")
    parser.add_argument("--call", default="*", metavar="ID", help="only this call")
    parser.add_argument("--types", metavar="A,B", help="only these event types")
    parser.add_argument("--after", metavar="CURSOR", help="begin after this cursor instead of now")
    parser.add_argument("--json", action="store_true", help="one JSON object per line, as received")
    once = "wait for events until the connection ends; exit instead of reconnecting"
    parser.add_argument("--once", action="store_true", help=once)


def run(args: argparse.Namespace) -> int:
    worker = connection.address(args, "events")
    with connection.failures(worker), contextlib.suppress(_Over):
        asyncio.run(_follow(args, worker))
    return OK


class _Over(MediaworkerError):
    """The connection has ended, and `--once` asks for no other."""


async def _follow(args: argparse.Namespace, worker: WorkerAddress) -> None:
    """Print events, and reconnect after every loss. Raises _Over after the first loss with `--once`."""
    screen = Screen(colour=coloured(sys.stdout))

    def retry(reason: str, seconds: float) -> None:
        if args.once:
            raise _Over
        print_error(f"connection lost ({trust.reason(ConnectionError(reason))}); again in {seconds:.1f} s")

    types = args.types.split(",") if args.types else None
    after, expired, waits = args.after, False, args.once
    while True:
        stream = EventStream(
            worker.url, key=worker.key, call=args.call, types=types, after=after, patient=expired, tls=worker.tls,
            on_retry=retry,
        )  # fmt: skip
        try:
            async for text in stream.frames():
                if waits:
                    waits = False
                    print_error("waiting for events until the worker closes the connection; Ctrl-C ends it")
                if args.json:
                    print_now(printable_json(text))
                else:
                    screen.show(json.loads(text))
        except CursorExpired:
            if args.once:
                return
            print_error("the cursor has expired: going on with what comes now")
            after, expired = None, True


def _printable(value: Any) -> Any:
    """The value with unprintable characters replaced, so that a caller's text cannot control the terminal."""
    if isinstance(value, str):
        return "".join(char if char.isprintable() else "�" for char in value)
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


class Screen:
    """Prints events as lines. On a terminal with colours, a partial is rewritten in place until its final arrives."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._open_line = False

    def show(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        text = self._describe(kind, _printable(event))
        if text is None:
            return
        seconds = (event.get("at_ms") or 0) / 1000
        call = (event.get("call_id") or "-")[-6:]
        line = f"{seconds:8.2f}  {call:6}  {text}"
        if self._open_line:
            print("\r\x1b[K", end="")
        self._open_line = self._colour and kind == "transcript.partial"
        print(line, end="" if self._open_line else "\n", flush=True)

    def _describe(self, kind: str, event: dict[str, Any]) -> str | None:
        who = f"{event.get('leg', '')}" + (f"/{event['role']}" if event.get("role", "unknown") != "unknown" else "")
        match kind:
            case "transcript.partial":
                stable, rest = event["text"][: event["stable_chars"]], event["text"][event["stable_chars"] :]
                return f"{self._dim('…')} {who}: {stable}{self._dim(rest)}"
            case "transcript.final":
                shown = event["text"] or f"({event.get('error') or 'no words'})"
                took = self._dim(f"{event['latency_ms']} ms")
                return f"{self._bold('■')} {who}: {self._bold(shown)}  {took}"
            case "call.started":
                legs = ", ".join(f"{leg['leg']} ({leg['role']}, {leg['codec']})" for leg in event["legs"])
                return f"▶ {event['source']} call from {event['from'] or '?'} to {event['to'] or '?'}: {legs}"
            case "call.ended":
                media = ", ".join(
                    f"{leg['leg']}: {leg['packets']} packets, {leg['lost']} lost" for leg in event["legs"]
                )
                return f"◀ call ended ({event['reason']}) after {event['duration_ms'] / 1000:.1f} s; {media}"
            case "dtmf":
                return f"# {who}: {event['digit']}"
            case "alert":
                return f"! {event['severity']} {event['rule']} {who}: {event.get('match', '')}".rstrip(": ")
            case "audio.suspect":
                return f"? {who}: {event['detail']}"
            case "call.held" | "call.resumed" | "leg.updated":
                return self._dim(f"{kind} {who} {event.get('text', '')}".rstrip())
            case "engine.state":
                return self._dim(f"engine: {event['state']}")
            case "hello":
                return self._dim(f"connected to {event['server']}, {len(event['calls'])} live calls")
            case "lagged":
                return self._dim(f"{event['dropped_partials']} partials dropped: this terminal is too slow")
        return None

    def _bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self._colour else text

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._colour else text
