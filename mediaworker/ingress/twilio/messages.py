"""The messages of Twilio Media Streams as types. Numbers arrive as strings, and only the fields in use are declared.

`sequenceNumber` and `chunk` are ignored on purpose: `timestamp` alone determines the position of audio, so wrong values
of the other two do no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, get_args

import msgspec
from msgspec import Meta, Struct

from mediaworker.ingress.errors import MalformedMessage, UnknownMessage

Sid = Annotated[str, Meta(min_length=1, max_length=128)]
Millis = Annotated[int, Meta(ge=0)]


class MediaFormat(Struct, frozen=True, rename="camel"):
    encoding: str = "audio/x-mulaw"
    sample_rate: int = 8000
    channels: int = 1


class StartBody(Struct, frozen=True, rename="camel"):
    call_sid: Sid
    account_sid: str = ""
    tracks: tuple[str, ...] = ("inbound",)
    custom_parameters: dict[str, str] = {}
    media_format: MediaFormat = MediaFormat()


class MediaBody(Struct, frozen=True):
    track: str
    timestamp: Millis
    """The milliseconds since the start of the stream, by the same clock for both tracks."""
    payload: bytes
    """µ-law codes; base64 on the wire."""


class DtmfBody(Struct, frozen=True):
    digit: Annotated[str, Meta(pattern=r"^[0-9A-D*#]\Z")]
    track: str = "inbound_track"


class MarkBody(Struct, frozen=True):
    name: str = ""


class TwilioMessage(Struct, frozen=True, tag_field="event", rename="camel"):
    """The base of all messages; the tag is the `event`."""

    @property
    def event(self) -> str:
        return str(self.__struct_config__.tag)


class ConnectedMessage(TwilioMessage, frozen=True, tag="connected"):
    protocol: str = ""
    version: str = ""


class StartMessage(TwilioMessage, frozen=True, tag="start"):
    stream_sid: Sid
    start: StartBody


class MediaMessage(TwilioMessage, frozen=True, tag="media"):
    stream_sid: str
    media: MediaBody


class DtmfMessage(TwilioMessage, frozen=True, tag="dtmf"):
    stream_sid: str
    dtmf: DtmfBody


class MarkMessage(TwilioMessage, frozen=True, tag="mark"):
    stream_sid: str
    mark: MarkBody = MarkBody()


class StopMessage(TwilioMessage, frozen=True, tag="stop"):
    stream_sid: str = ""


FromTwilio = ConnectedMessage | StartMessage | MediaMessage | DtmfMessage | MarkMessage | StopMessage
EVENTS = frozenset(kind.__struct_config__.tag for kind in get_args(FromTwilio))


class _Envelope(Struct, frozen=True):
    event: str


_decode: Callable[[str | bytes], FromTwilio] = msgspec.json.Decoder(FromTwilio, strict=False).decode
_peek: Callable[[str | bytes], _Envelope] = msgspec.json.Decoder(_Envelope).decode
# Deep nesting raises RecursionError; invalid UTF-8 and lone surrogates raise UnicodeError (a ValueError).
_ERRORS = (ValueError, RecursionError)


def parse(text: str | bytes) -> FromTwilio:
    """Parse one message. Raises MalformedMessage or UnknownMessage, and nothing else."""
    try:
        return _decode(text)
    except _ERRORS as error:
        event = _event(text)
        if event is None or event in EVENTS:
            raise MalformedMessage(str(error)) from None
        raise UnknownMessage(event[:64]) from None


def _event(text: str | bytes) -> str | None:
    try:
        return _peek(text).event
    except _ERRORS:
        return None


def written(event: str, stream_sid: str, **body: object) -> str:
    """A `media`, `mark` or `clear` for a bidirectional stream; on any other stream they are Twilio's error 31924. The
    payload of `media` is bytes, base64 on the wire."""
    return msgspec.json.encode({"event": event, "streamSid": stream_sid, **body}).decode()
