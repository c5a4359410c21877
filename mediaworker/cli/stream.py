"""`mediaworker stream`: a test Twilio that plays files into any Media Streams server, in real time.

Plays files into a Media Streams server as Twilio would. With an http(s) URL it asks that voice webhook first and
follows its TwiML.

Exit code: 0 played to the end, 1 refused or broken off, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import ssl
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree as Xml

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from audio.codecs.g711 import ulaw_encode
from config.network.addresses import is_loopback
from config.process.tasks import end_tasks, within
from mediaworker.cli.play import load_pcm
from mediaworker.cli.terminal import trust
from mediaworker.cli.terminal.output import OK, CommandError, UsageError
from mediaworker.ingress.twilio.sender import StreamWriter, new_sid, schedule
from mediaworker.ingress.twilio.webhook import sign
from mediaworker.replay import recording
from mediaworker.replay.recording import RecordedMessage

TIMEOUT_S = 10.0
_SIGNATURE = "X-Twilio-Signature"


class StreamError(CommandError):
    """The peer refused or broke the stream."""


Messages = Iterator[tuple[float, Callable[[], str]]]
"""(due time in seconds, function that writes the message), as `twilio_stream.schedule` returns them."""


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """The server to stream to, and the kind of stream."""

    url: str
    signed_url: str
    """The URL as the server knows it, over which the signature is computed."""
    parameters: Mapping[str, str]
    bidirectional: bool
    reply: str | None = None
    """The file for the audio that the server plays back; None if it is not saved."""
    tls: ssl.SSLContext | None = None
    """The TLS context for `wss`; None trusts the system's authorities."""


class _Payload(msgspec.Struct, frozen=True):
    payload: bytes = b""


class _ToTwilio(msgspec.Struct):
    event: str
    mark: dict[str, str] = {}
    media: _Payload = _Payload()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", help="ws://HOST:8081/twilio/stream, or http://HOST:8080/twilio/voice")
    parser.add_argument("--play", required=True, metavar="FILE", help="what the caller says (inbound track)")
    parser.add_argument("--play-outbound", metavar="FILE", help="what the other side says (outbound track)")
    parser.add_argument("--auth-token", metavar="T", help="sign requests with this auth token")
    parser.add_argument("--sign-url", metavar="URL", help="sign over this URL instead of the stream's own")
    parser.add_argument("--param", action="append", default=[], metavar="K=V", help="a custom parameter; repeatable")
    parser.add_argument("--call-sid", metavar="SID", help="default: a new one")
    parser.add_argument("--account-sid", metavar="SID", help="default: a new one")
    parser.add_argument("--from", dest="from_", default="", metavar="NUMBER", help="the caller's number")
    parser.add_argument("--to", default="", metavar="NUMBER", help="the called number")
    parser.add_argument("--connect", action="store_true", help="a bidirectional stream, as <Connect> makes it")
    parser.add_argument("--dtmf", default="", metavar="DIGITS", help="digits, one every 500 ms (with --connect)")
    parser.add_argument("--tail", type=float, default=1.0, metavar="S", help="silence after the file (default 1 s)")
    parser.add_argument("--record", metavar="FILE", help="keep what is sent, for `mediaworker replay` (.jsonl)")
    parser.add_argument("--save-reply", metavar="FILE", help="keep what is played back, as µ-law (with --connect)")
    trust.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    try:
        return asyncio.run(_run(args))
    except ValueError as error:
        raise UsageError(str(error)) from None


async def _run(args: argparse.Namespace) -> int:
    parameters = _parameters(args)
    if not re.fullmatch("[0-9A-D*#]*", args.dtmf):
        raise UsageError(f"--dtmf {args.dtmf}: digits are 0-9 A-D * #")
    if not 0 <= args.tail <= 3600:
        raise UsageError(f"--tail {args.tail:g}: expected 0 to 3600 seconds")
    if not urlsplit(args.url).hostname:
        raise UsageError(f"{args.url}: no host in it")
    files = {"inbound": args.play} | ({"outbound": args.play_outbound} if args.play_outbound else {})
    tracks = {track: bytes(ulaw_encode(load_pcm(file, 8000))) for track, file in files.items()}
    writer = StreamWriter(new_sid("MZ"), args.call_sid or new_sid("CA"), args.account_sid or new_sid("AC"))
    match urlsplit(args.url).scheme:
        case "ws" | "wss":
            target = StreamTarget(args.url, args.sign_url or args.url, parameters, args.connect)
        case "http" | "https":
            target = await asyncio.to_thread(ask_webhook, args, writer, parameters)
        case _:
            raise UsageError(f"{args.url}: expected ws://, wss://, http:// or https://")
    if target.bidirectional and "outbound" in tracks:
        raise UsageError("--play-outbound: a <Connect> stream carries the inbound track only")
    if args.dtmf and not target.bidirectional:
        raise UsageError("--dtmf: Twilio sends digits on <Connect> streams only; add --connect")
    messages = schedule(writer, tracks, target.parameters, tail_s=args.tail, digits=args.dtmf)
    if args.save_reply and not target.bidirectional:
        raise UsageError("--save-reply: only <Connect> streams are played to; add --connect")
    target = replace(target, reply=args.save_reply, tls=trust.context(args))
    headers = {_SIGNATURE: sign(args.auth_token, target.signed_url)} if args.auth_token else {}
    if not args.record:
        return await stream(target, headers, writer, messages)
    kept: list[RecordedMessage] = []
    try:
        return await stream(target, headers, writer, keeping(messages, kept))
    finally:
        _save(args.record, lambda path: recording.write(path, kept))


def keeping(messages: Messages, kept: list[RecordedMessage]) -> Messages:
    """The same messages, each of which is appended to `kept` when it is written."""

    def keep(due_s: float, write: Callable[[], str]) -> str:
        kept.append(RecordedMessage(due_s, write()))
        return kept[-1].text

    return ((due_s, partial(keep, due_s, write)) for due_s, write in messages)


def _save(path: str, write: Callable[[str], object]) -> None:
    """Write a result to a file. Raises StreamError."""
    try:
        write(path)
    except OSError as error:
        raise StreamError(f"{path}: {error.strerror or error}") from None


async def stream(target: StreamTarget, headers: Mapping[str, str], writer: StreamWriter, messages: Messages) -> int:
    """Play the messages on an absolute schedule. Raises StreamError."""
    loop = asyncio.get_running_loop()
    parts = urlsplit(target.url)
    proxy: Literal[True] | None = None if is_loopback(parts.hostname or "") else True
    try:
        async with connect(
            target.url,
            additional_headers=headers,
            user_agent_header="mediaworker-stream",
            compression=None,
            ping_interval=None,
            open_timeout=TIMEOUT_S,
            proxy=proxy,
            ssl=(target.tls or True) if parts.scheme == "wss" else None,
        ) as websocket:
            listening = loop.create_task(_listen(websocket, writer, target))
            try:
                await _speak(websocket, messages, listening)
                await listening
            finally:
                listening.cancel()
    except InvalidStatus as error:
        why = trust.refusal(error.response.status_code, error.response.body or b"")
        raise StreamError(f"{target.url}: {why}") from None
    except OSError as error:
        raise StreamError(f"{target.url}: {trust.reason(error)}") from None
    except WebSocketException as error:
        raise StreamError(f"{target.url}: {error}") from None
    return OK


async def _speak(websocket: ClientConnection, messages: Messages, listening: asyncio.Task[None]) -> None:
    """Send every message when it is due, then close. Stop early if `listening` has ended, which has the reason."""
    clock = asyncio.get_running_loop().time
    start_s = clock()
    try:
        for due_s, write in messages:
            if (wait_s := start_s + due_s - clock()) > 0:
                await asyncio.sleep(wait_s)
            if listening.done():
                return
            await websocket.send(write())
        await websocket.close()
    except ConnectionClosed:
        pass


async def _listen(websocket: ClientConnection, writer: StreamWriter, target: StreamTarget) -> None:
    """Answer what the server sends until it or we have closed.

    Raises:
        StreamError: the stream was closed with an error, or by a message that Twilio rejects (its error 31924).
    """
    reply = b""
    playback = _PlaybackClock(websocket, writer)
    returning = asyncio.get_running_loop().create_task(playback.return_marks())
    try:
        async for text in websocket:
            try:
                message = msgspec.json.decode(text, type=_ToTwilio)
            except ValueError:
                message = _ToTwilio("?")
            if not target.bidirectional or message.event not in ("media", "mark", "clear"):
                kind = "bidirectional" if target.bidirectional else "unidirectional"
                raise StreamError(f"error 31924: the server sent a {message.event!r} message on a {kind} stream")
            reply += message.media.payload
            playback.receive(message)
    except ConnectionClosed:
        pass
    finally:
        await end_tasks(returning)
    if target.reply is not None:
        await asyncio.to_thread(_save, target.reply, lambda path: Path(path).write_bytes(reply))
    if websocket.close_code not in (1000, 1001, None):
        reason = f" {websocket.close_reason}" if websocket.close_reason else ""
        raise StreamError(f"the server closed the stream: {websocket.close_code}{reason}")


class _PlaybackClock:
    """Plays the received audio in simulated real time: a mark is returned when the audio before it has ended, or is
    cleared."""

    def __init__(self, websocket: ClientConnection, writer: StreamWriter) -> None:
        self._websocket, self._writer = websocket, writer
        self._clock = asyncio.get_running_loop().time
        self._until_s = 0.0
        """When the playback of all audio so far ends."""
        self._marks: deque[tuple[float, str]] = deque()
        """(due time, name) of each mark."""
        self._changed = asyncio.Event()

    def receive(self, message: _ToTwilio) -> None:
        now = self._clock()
        match message.event:
            case "media":
                self._until_s = max(now, self._until_s) + len(message.media.payload) / 8000
            case "mark":
                self._marks.append((self._until_s, message.mark.get("name", "")))
            case "clear":
                self._until_s = now
                self._marks = deque((now, name) for _, name in self._marks)
        self._changed.set()

    async def return_marks(self) -> None:
        """Return each mark when it is due, until the connection is closed."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self._changed.clear()
                wait_s = self._marks[0][0] - self._clock() if self._marks else None
                if wait_s is not None and wait_s <= 0:
                    await self._websocket.send(self._writer.mark(self._marks.popleft()[1]))
                    continue
                async with within(wait_s):
                    await self._changed.wait()


def ask_webhook(args: argparse.Namespace, writer: StreamWriter, parameters: Mapping[str, str]) -> StreamTarget:
    """Post a call to a voice webhook and read where its TwiML sends the audio. Raises StreamError."""
    form = {
        "AccountSid": writer.account_sid,
        "CallSid": writer.call_sid,
        "CallStatus": "ringing",
        "Direction": "inbound",
        "From": args.from_,
        "To": args.to,
    }
    headers = {_SIGNATURE: sign(args.auth_token, args.sign_url or args.url, form.items())} if args.auth_token else {}
    request = urllib.request.Request(args.url, urlencode(form).encode(), headers)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=trust.context(args))]
    if is_loopback(urlsplit(args.url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S) as response:
            twiml = Xml.fromstring(response.read(65536))
    except urllib.error.HTTPError as error:
        raise StreamError(f"{args.url}: {trust.refusal(error.code, error.read(100_000))}") from None
    except OSError as error:
        raise StreamError(f"{args.url}: {trust.reason(error)}") from None
    except Xml.ParseError as error:
        raise StreamError(f"{args.url}: the answer is not TwiML: {error}") from None
    for verb in ("Start", "Connect"):
        if (found := twiml.find(f"{verb}/Stream")) is not None:
            given = {item.get("name", ""): item.get("value", "") for item in found.iter("Parameter")}
            url = found.get("url", "")
            return StreamTarget(url, url, {**given, **parameters}, verb == "Connect")
    raise StreamError(f"{args.url}: the TwiML has no <Start><Stream> or <Connect><Stream>")


def _parameters(args: argparse.Namespace) -> dict[str, str]:
    known = {"mw_from": args.from_, "mw_to": args.to, "mw_mode": "connect" if args.connect else ""}
    parameters = {key: value for key, value in known.items() if value}
    for item in args.param:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise UsageError(f"--param {item}: expected K=V")
        parameters[key] = value
    return parameters
