"""The control messages of Asterisk's WebSocket channels, in their text form and their JSON form.

Events are `NAME key:value key:value`, or with `control_message_format = json` an object with `event`; only the JSON
form has the channel's variables. Commands are sent in the form that the peer uses. Format: docs.asterisk.org,
Configuration/Channel-Drivers/WebSocket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mediaworker.ingress.audio_intake import AudioForm
from mediaworker.ingress.errors import MalformedMessage, UnknownMessage

FORMATS: dict[str, AudioForm] = {
    "ulaw": AudioForm("mulaw", 8000),
    "alaw": AudioForm("alaw", 8000),
    "slin": AudioForm("pcm_s16le", 8000),
    "slin12": AudioForm("pcm_s16le", 12000),
    "slin16": AudioForm("pcm_s16le", 16000),
    "slin24": AudioForm("pcm_s16le", 24000),
    "slin32": AudioForm("pcm_s16le", 32000),
    "slin44": AudioForm("pcm_s16le", 44100),
    "slin48": AudioForm("pcm_s16le", 48000),
    "slin96": AudioForm("pcm_s16le", 96000),
    "slin192": AudioForm("pcm_s16le", 192000),
}
"""Asterisk's name of a codec → the form of its audio."""
PLAIN = frozenset(
    {
        "DTMF_END", "ERROR", "MEDIA_BUFFERING_COMPLETED", "MEDIA_MARK_PROCESSED", "MEDIA_START", "MEDIA_XOFF",
        "MEDIA_XON", "QUEUE_DRAINED", "STATUS",
    }
)  # fmt: skip
ANSWER, HANGUP, GET_STATUS = "ANSWER", "HANGUP", "GET_STATUS"
MAX_COMMAND = 128
"""The most bytes of a command; Asterisk ignores longer ones."""
_VARIABLE = re.compile(r"_{0,2}MEDIAWORKER_([A-Z]+)\Z", re.IGNORECASE)
"""A variable for us. One that child channels inherit begins with one or two underscores."""


@dataclass(frozen=True, slots=True)
class Notice:
    """An event that needs no action."""

    event: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class DtmfEnd:
    digit: str


@dataclass(frozen=True, slots=True)
class MediaStart:
    """The channel is connected: its identity, its variables and the format of its audio."""

    format: str
    connection_id: str = ""
    """For connections that Asterisk opens, the client's name in websocket_client.conf, which is the same for all calls.
    """
    channel: str = ""
    channel_id: str = ""
    """The channel's unique id, which Asterisk sends since 20.17."""
    variables: dict[str, str] = field(default_factory=dict)
    json: bool = False

    @property
    def own(self) -> dict[str, str]:
        """The variables for us by their short names: `MEDIAWORKER_LANGUAGE` is `language`."""
        matches = ((_VARIABLE.match(name), value) for name, value in self.variables.items())
        return {match[1].lower(): value for match, value in matches if match is not None and value}

    @property
    def others(self) -> dict[str, str]:
        return {name: value for name, value in self.variables.items() if _VARIABLE.match(name) is None}


Event = Notice | DtmfEnd | MediaStart
_MAX_VALUE, _MAX_VARIABLES = 4000, 64


def parse(text: str) -> Event:
    """Parse one text message. Raises MalformedMessage or UnknownMessage, and nothing else."""
    json = text.lstrip().startswith("{")
    fields = _json(text) if json else _plain(text)
    event = fields.get("event", "")
    if event not in PLAIN:
        raise UnknownMessage(str(event)[:40])
    if event == "DTMF_END":
        return DtmfEnd(_text(fields, "digit").upper())
    if event == "MEDIA_START":
        return MediaStart(
            format=_text(fields, "format"),
            connection_id=_text(fields, "connection_id"),
            channel=_text(fields, "channel"),
            channel_id=_text(fields, "channel_id"),
            variables=_variables(fields.get("channel_variables")),
            json=json,
        )
    return Notice(event, _text(fields, "error_text"))


def command(name: str, *, json: bool) -> str:
    text = msgspec.json.encode({"command": name}).decode() if json else name
    assert len(text.encode()) <= MAX_COMMAND
    return text


def _json(text: str) -> dict[str, Any]:
    try:
        message = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:  # lone surrogates are a ValueError too
        raise MalformedMessage(str(error)) from None
    if not isinstance(message, dict):
        raise MalformedMessage("no object")
    if not isinstance(message.get("event"), str):
        raise MalformedMessage("no event")
    return message


def _plain(text: str) -> dict[str, str]:
    event, _, rest = text.strip().partition(" ")
    if not re.fullmatch(r"[A-Z_]{1,40}", event):
        raise MalformedMessage("no event")
    fields = {"event": event}
    last = ""
    for word in rest.split(" "):
        name, colon, value = word.partition(":")
        if colon and re.fullmatch(r"[a-z_]{1,40}", name):
            last, fields[name] = name, value
        elif last:  # channel names may contain spaces
            fields[last] += f" {word}"
    return fields


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise MalformedMessage(f"{name} is no text")
    return value[:_MAX_VALUE]


def _variables(value: object) -> dict[str, str]:
    """The variables whose value is text, ours first, at most _MAX_VARIABLES."""
    if not isinstance(value, dict):
        return {}
    pairs = ((name, text[:_MAX_VALUE]) for name, text in value.items() if isinstance(text, str))
    return dict(sorted(pairs, key=lambda pair: _VARIABLE.match(pair[0]) is None)[:_MAX_VARIABLES])
