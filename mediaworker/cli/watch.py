"""`mediaworker watch`: live events in the terminal, resumed by cursor when the connection drops."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
from typing import Any

from websockets.exceptions import InvalidHandshake

from config.log_text import printable_json
from mediaworker.cli import trust
from mediaworker.cli.terminal import print_error
from mediaworker.client import ClientError, CursorExpired, EventStream

DEFAULT_URL = "ws://127.0.0.1:8080/v1/events"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("watch", help="follow live events in the terminal")
    parser.add_argument(
        "url", nargs="?", default=DEFAULT_URL, help=f"events URL or the worker's address ({DEFAULT_URL})"
    )
    parser.add_argument("--call", default="*", metavar="ID", help="only this call")
    parser.add_argument("--types", metavar="A,B", help="only these event types")
    parser.add_argument("--after", metavar="CURSOR", help="begin after this cursor instead of now")
    parser.add_argument("--json", action="store_true", help="one JSON object per line, as received")
    parser.add_argument("--key", default=os.environ.get("MEDIAWORKER_KEY", ""), help="API key (or $MEDIAWORKER_KEY)")
    parser.add_argument(
        "--once", action="store_true", help="wait for events until the connection ends; exit instead of reconnecting"
    )
    trust.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    try:
        return asyncio.run(_watch(args, trust.context(args)))
    except ValueError as error:
        print_error(str(error))
        return 2
    except BrokenPipeError:  # what reads has ended: `watch | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Over(Exception):
    """The connection has ended, and that is enough."""


async def _watch(args: argparse.Namespace, tls: ssl.SSLContext) -> int:
    try:
        await _follow(args, tls)
    except _Over:
        return 0
    except BrokenPipeError:
        raise
    except OSError as error:  # a certificate's error is a ValueError too
        print_error(f"{args.url}: {trust.reason(error)}")
        return 1
    except (ClientError, InvalidHandshake, ValueError) as error:
        print_error(f"{args.url}: {_refusal(error)}")
        return 1
    return 0


async def _follow(args: argparse.Namespace, tls: ssl.SSLContext) -> None:
    """Print events, over as many connections as it takes. Raises _Over when one was asked for and has ended."""
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    screen = Screen(colour=colour, rewrite=colour)

    def retry(reason: str, seconds: float) -> None:
        if args.once:
            raise _Over
        _note(f"connection lost ({reason}); again in {seconds:.1f} s")

    types = args.types.split(",") if args.types else None
    after, expired, waits = args.after, False, args.once
    while True:
        stream = EventStream(
            args.url, key=args.key, call=args.call, types=types, after=after, patient=expired, tls=tls, on_retry=retry
        )
        try:
            async for text in stream.frames():
                if waits:
                    waits = False
                    _note("waiting for events until the worker closes the connection; Ctrl-C ends it")
                if args.json:
                    print(printable_json(text), flush=True)
                else:
                    screen.show(json.loads(text))
        except CursorExpired:
            if args.once:
                return
            _note("the cursor has expired: going on with what comes now")
            after, expired = None, True


def _printable(value: Any) -> Any:
    """What strangers say must not steer the terminal."""
    if isinstance(value, str):
        return "".join(char if char.isprintable() else "�" for char in value)
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


def _note(text: str) -> None:
    print_error(text)


def _refusal(error: Exception) -> str:
    if isinstance(error, ClientError):
        hint = {401: " (give --key or $MEDIAWORKER_KEY)", 403: " (the key lacks the scope `events`)"}
        return f"refused with status {error.status}{hint.get(error.status, f': {error.detail}')}"
    return str(error)


class Screen:
    """Events as lines. On a terminal a partial is rewritten in place until its final comes."""

    def __init__(self, *, colour: bool, rewrite: bool) -> None:
        self._colour, self._rewrite = colour, rewrite
        self._open_line = False

    def show(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        text = self._describe(kind, _printable(event))
        if text is None:
            return
        seconds = (event.get("at_ms") or 0) / 1000
        call = (event.get("call_id") or "-")[-6:]
        line = f"{seconds:8.2f}  {call:6}  {text}"
        if self._rewrite and self._open_line:
            print("\r\x1b[K", end="")
        self._open_line = self._rewrite and kind == "transcript.partial"
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
