"""Reads and writes recorded media streams. Each line is a WebSocket message as it was received, or
`{"at_s": 1.25, "message": …}` with the time of its arrival.

`message` is the JSON message itself or its text. Without `at_s` a media message arrives at the time of its last sample,
and any other message together with the one before it. Parse and print are inverses.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mediaworker.ingress.errors import MalformedMessage, UnknownMessage
from mediaworker.ingress.twilio.messages import MediaMessage, StartMessage, parse
from mediaworker.replay.pcap import CaptureError

MAX_BYTES = 1 << 30


class RecordedMessage(NamedTuple):
    """A message and the time of its arrival."""

    at_s: float
    text: str


class _Line(msgspec.Struct):
    message: msgspec.Raw
    at_s: float | None = None


_plain = msgspec.json.Decoder(dict[str, Any])
_line = msgspec.json.Decoder(_Line)


def read(path: str | Path) -> list[RecordedMessage]:
    """Return the messages in the order of arrival. Raises CaptureError, which names the line."""
    try:
        data = Path(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.open(path) as file:
                data = file.read(MAX_BYTES)
        lines = data.decode().splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise CaptureError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError:
        raise CaptureError(f"{path}: no text") from None
    found: list[RecordedMessage] = []
    latest = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            at_s, text = _parse(line)
        except (ValueError, RecursionError) as error:
            raise CaptureError(f"{path}: line {number}: {error}") from None
        latest = max(latest, _spoken_s(text)) if at_s is None else at_s
        found.append(RecordedMessage(latest, text))
    if not any(isinstance(_parsed(text), StartMessage) for _, text in found):
        raise CaptureError(f"{path}: no start message in it")
    return sorted(found, key=lambda message: message.at_s)


def write(path: str | Path, messages: Iterable[RecordedMessage]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for message in messages:
            file.write(print_line(message) + "\n")


def print_line(message: RecordedMessage) -> str:
    """Return the line of a message. A message that is not a JSON object (a peer may send anything) is kept as text."""
    inside: Any = message.text
    with contextlib.suppress(ValueError, RecursionError):
        _plain.decode(message.text)
        inside = msgspec.Raw(message.text.encode())
    return msgspec.json.encode({"at_s": round(message.at_s, 6), "message": inside}).decode()


def is_media(text: str) -> bool:
    return isinstance(_parsed(text), MediaMessage)


def _parse(line: str) -> tuple[float | None, str]:
    fields = _plain.decode(line)
    if "message" not in fields or "event" in fields:
        return None, line
    wrapped = _line.decode(line)
    if isinstance(fields["message"], str):
        return wrapped.at_s, fields["message"]
    return wrapped.at_s, bytes(wrapped.message).decode()


def _spoken_s(text: str) -> float:
    message = _parsed(text)
    if not isinstance(message, MediaMessage):
        return 0.0
    return message.media.timestamp / 1000 + len(message.media.payload) / 8000


def _parsed(text: str) -> object:
    """Return the message; None when the text is not one of Twilio's."""
    try:
        return parse(text)
    except (MalformedMessage, UnknownMessage):
        return None
