"""The session description in a request, judged before PJSIP sees it, and shown to it as it was understood. No I/O.

PJSIP finds out late, with a call half set up, that it cannot use what is offered; and it reads descriptions in ways of
its own, so that it may take another format than we do. So a request whose description has no line for us is refused
here, and PJSIP is shown a description made anew: lines that are not for us are closed (port 0, RFC 3264 section 6), and
the others have the formats that are used, described as our own description has them. There is one reading of an offer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from audio.codecs.codec import Codec
from config.addresses import Family
from sip.protocol.errors import NotAcceptable, PeerError, UnsupportedBody
from sip.protocol.message import BLANK_LINE, SipMessage, locate_part
from sip.protocol.offer_answer import NegotiatedStream, SrtpUse, match_lines, refusal
from sip.protocol.own_description import as_understood
from sip.protocol.sdp import SessionDescription
from sip.protocol.siprec import CONTENT_TYPES

METHODS = frozenset(("INVITE", "UPDATE", "PRACK", "ACK"))
"""Requests whose body may be an offer or an answer (RFC 3261, RFC 3311, RFC 3262)."""
MAX_BYTES = 32000
"""A description has at most this many bytes: PJSIP hands over no more (PJSUA2_MAX_SDP_BUF_LEN of the build)."""
MAX_LINES = 16
"""PJSIP drops any m-lines beyond these (its PJMEDIA_MAX_SDP_MEDIA), so they could not be answered."""
MAX_ATTRIBUTES = 256
"""A line, or the session, has at most this many attributes (PJMEDIA_MAX_SDP_ATTR of the build)."""
MAX_FORMAT = 256
"""Characters of one format of a line: a number, or a name."""
MAX_KEYS = 32
"""`a=crypto` of a line: an offer has one for each suite that the peer knows."""
Line = NegotiatedStream | NotAcceptable
_ONCE = ("content-type", "content-length", "content-encoding")


@dataclass(frozen=True, slots=True)
class Judged:
    """A description, as it was understood."""

    streams: tuple[NegotiatedStream, ...]
    shown: str
    """The description that PJSIP is shown."""


def check(
    packet: bytes,
    codecs: Sequence[Codec],
    *,
    use: SrtpUse = "optional",
    families: Sequence[Family] = ("IP4",),
) -> str:
    """The description that PJSIP is shown of the offer in a request with one of `METHODS`; empty without one.

    What only brings metadata of a recording within a dialog is left alone.

    Raises:
        PeerError: the request cannot be accepted for its body; the error has the status and headers of the response.
    """
    found = judge(packet, partial(match_lines, codecs=codecs, use=use, families=families))
    return "" if found is None else found.shown


def judge(packet: bytes, match: Callable[[SessionDescription], Sequence[Line]]) -> Judged | None:
    """As `check`; None without a description. `match`: what each line comes to."""
    where = described(packet)
    if where is None:
        return None
    found = SessionDescription.parse(packet[where].decode("latin-1"))
    _bound(found, where.stop - where.start)
    lines = match(found)
    streams = tuple(line for line in lines if isinstance(line, NegotiatedStream))
    if not streams:
        raise refusal(lines)
    shown = str(as_understood(replace(found, media=found.media[: len(lines)]), streams))
    _bound(found, len(shown))
    return Judged(streams, shown)


def described(packet: bytes) -> slice | None:
    """Where in a request its session description lies; None without one. Raises PeerError as `check` does."""
    text = packet.decode("latin-1")
    message = SipMessage.parse(text)
    names = [name for name, _ in message.headers]
    if any(names.count(name) > 1 for name in _ONCE):
        raise PeerError(f"more than one {', or '.join(_ONCE)}")
    blank = BLANK_LINE.search(text)
    start = blank.end() if blank else len(text)
    length = message.header("content-length")
    body = text[start : start + int(length)] if length.isdecimal() and len(length) < 10 else text[start:]
    if not body.strip():
        return None
    if message.header("content-encoding").lower() not in ("", "identity"):
        raise UnsupportedBody("the body is encoded")
    kind = message.header("content-type")
    part = locate_part(kind, body, "application/sdp")
    if part is None:
        if ";tag=" in message.header("to") and any(locate_part(kind, body, each) for each in CONTENT_TYPES):
            return None
        raise UnsupportedBody("the body is no session description")
    return slice(start + part.start, start + part.stop)


def _bound(offer: SessionDescription, size: int) -> None:
    """Raises NotAcceptable for more than PJSIP takes, or anybody has."""
    if size > MAX_BYTES:
        raise NotAcceptable(f"a description of more than {MAX_BYTES} bytes")
    if len(offer.media) > MAX_LINES:
        raise NotAcceptable(f"more than {MAX_LINES} media lines")
    if any(len(each) > MAX_FORMAT for media in offer.media for each in media.formats):
        raise NotAcceptable(f"a format of more than {MAX_FORMAT} characters")
    for attributes in (offer.attributes, *(media.attributes for media in offer.media)):
        if len(attributes) > MAX_ATTRIBUTES:
            raise NotAcceptable(f"more than {MAX_ATTRIBUTES} attributes of one line")
        if sum(name == "crypto" for name, _ in attributes) > MAX_KEYS:
            raise NotAcceptable(f"more than {MAX_KEYS} a=crypto of one line", 306)
