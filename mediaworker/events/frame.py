"""An event as JSON: one flat object with the fields of its envelope (`v`, `type`, `cursor`, `call_id`, `seq`, `at_ms`,
`time`) and those of its body beside them. `encode` and `decode` are inverses.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mediaworker.events.schema import BODIES, VERSION, Event, EventBody, EventError, type_of


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every frame has."""

    v: Annotated[Literal[1], Meta(description="Version of this schema")]
    cursor: Annotated[str, Meta(description="`<store id>:<row id>`: resume after this event with `after=`")]
    call_id: str | None
    """null for events of the worker or of the connection, except `call.erased`."""
    seq: Annotated[int, Meta(description="Counts the call's durable events from 1; others carry the last value")]
    at_ms: Annotated[int, Meta(description="Milliseconds since the call started; 0 without a call")]
    time: Annotated[str, Meta(description="When the worker published it, RFC 3339, UTC")]
    stored: bool = True
    """false: a durable event that was not on the disk when it was sent, because the disk is full or broken. It is
    stored as soon as there is room; a kill before that loses it. Absent is true."""


def timestamp(unix_s: float) -> str:
    """Return a Unix time in the form of RFC 3339, in UTC and to the millisecond."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_body_encoder = msgspec.json.Encoder()
_body_decoder: msgspec.json.Decoder[EventBody] = msgspec.json.Decoder(reduce(or_, BODIES))
_envelope_decoder = msgspec.json.Decoder(Envelope)


def encode(event: Event) -> str:
    """Return the event's frame. The body is encoded once, and the envelope is spliced in before its fields.

    Raises UnicodeEncodeError for text with lone surrogates: see `printable`.
    """
    head = f'{{"type":"{type_of(event.body)}"'
    body = _body_encoder.encode(event.body).decode()
    call_id = "null" if event.call_id is None else _quote(event.call_id)
    frame = (
        f'{{"v":{VERSION},{head[1:]},"cursor":{_quote(event.cursor)},"call_id":{call_id},'
        f'"seq":{event.seq},"at_ms":{event.at_ms},"time":{_quote(event.time)}{body[len(head) :]}'
    )
    return frame if event.stored else unstored(frame)


def unstored(frame: str) -> str:
    """Return the frame with `"stored":false` at its end, which marks an event that is not on the disk."""
    return f'{frame[:-1]},"stored":false}}'


def printable(body: EventBody) -> EventBody:
    """Return the body with lone surrogates replaced: UTF-8 cannot encode them, and they come from peers' bytes that
    were not UTF-8."""
    return msgspec.convert(_without_surrogates(msgspec.to_builtins(body)), type(body))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value


def decode(frame: str | bytes) -> Event:
    """Return the event of a frame; fields that this version does not know are ignored. Raises EventError."""
    try:
        envelope = _envelope_decoder.decode(frame)
        body = _body_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventError(str(error)) from None
    return Event(envelope.cursor, envelope.call_id, envelope.seq, envelope.at_ms, envelope.time, body, envelope.stored)


def _quote(text: str) -> str:
    return _body_encoder.encode(text).decode()
