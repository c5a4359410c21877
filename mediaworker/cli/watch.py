"""`mediaworker watch`: live events in the terminal, resumed by cursor when the connection drops."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import websockets
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

DEFAULT_URL = "ws://127.0.0.1:8080/v1/events"
RETRY_S = (0.2, 0.5, 1, 2, 5)


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
    parser.add_argument("--once", action="store_true", help="exit when the connection ends instead of reconnecting")


def run(args: argparse.Namespace) -> int:
    try:
        return asyncio.run(_watch(args))
    except BrokenPipeError:
        return 0


async def _watch(args: argparse.Namespace) -> int:
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    screen = Screen(colour=colour, rewrite=colour)
    try:
        async for text in follow(
            args.url, call=args.call, types=args.types, after=args.after, key=args.key, once=args.once, note=_note
        ):
            if args.json:
                print(text, flush=True)
            else:
                screen.show(json.loads(text))
    except (InvalidStatus, ValueError) as error:
        print(f"mediaworker: {args.url}: {_refusal(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"mediaworker: {args.url}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


async def follow(
    url: str,
    *,
    call: str = "*",
    types: str | None = None,
    after: str | None = None,
    key: str = "",
    once: bool = False,
    note: Any = lambda text: None,
) -> AsyncIterator[str]:
    """Event frames as text, across reconnects without a gap. Raises when the very first connection is refused."""
    cursor, attempt, connected = after, 0, False
    while True:
        query = {"call": call} | ({"types": types} if types else {}) | ({"after": cursor} if cursor else {})
        try:
            async with connect(
                events_url(url, query),
                subprotocols=[websockets.Subprotocol("bearer"), websockets.Subprotocol(key)] if key else None,
                max_size=None,
                compression=None,
            ) as socket:
                connected, attempt = True, 0
                async for message in socket:
                    text = message if isinstance(message, str) else message.decode()
                    event = json.loads(text)
                    # `hello` is a snapshot at its own cursor: without `after` that is where a resumption begins; with
                    # it, what was missed is still to come.
                    if event["type"] != "hello" or cursor is None:
                        cursor = event["cursor"]
                    yield text
            if once:
                return
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd else 1006
            if once:
                return
            if code == 4009:
                note("the cursor has expired: going on with what comes now")
                cursor = None
        except (OSError, InvalidHandshake):
            if not connected or once:
                raise
        delay = RETRY_S[min(attempt, len(RETRY_S) - 1)]
        attempt += 1
        note(f"connection lost; again in {delay} s")
        await asyncio.sleep(delay)


def events_url(url: str, query: dict[str, str]) -> str:
    """`http://host:8080` or a full events URL → the WebSocket URL with this query."""
    if "://" not in url:
        url = f"ws://{url}"
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError("not a WebSocket or HTTP URL")
    path = parts.path if parts.path.strip("/") else "/v1/events"
    return urlunsplit((scheme, parts.netloc, path, urlencode(query, safe="*:,"), ""))


def _note(text: str) -> None:
    print(f"mediaworker: {text}", file=sys.stderr)


def _refusal(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        hint = {401: " (give --key or $MEDIAWORKER_KEY)", 403: " (the key lacks the scope `events`)"}.get(status, "")
        return f"refused with status {status}{hint}"
    return str(error)


class Screen:
    """Events as lines. On a terminal a partial is rewritten in place until its final comes."""

    def __init__(self, *, colour: bool, rewrite: bool) -> None:
        self._colour, self._rewrite = colour, rewrite
        self._open_line = False

    def show(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        text = self._describe(kind, event)
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
            case "call.held" | "call.resumed" | "alert" | "leg.updated":
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
