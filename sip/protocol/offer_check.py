"""The check of the session description in a request before PJSIP gets it, in a form that PJSIP cannot misread. No I/O.

PJSIP detects an unusable offer late, with a call half set up. It also parses descriptions differently, and may choose
another format than we do. So a request whose description has no usable line is refused here. Otherwise PJSIP gets a new
description: unusable lines are closed (port 0, RFC 3264 section 6), and the others have only the negotiated formats,
written as in our own descriptions. So there is only one interpretation of an offer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from audio.codecs.codec import Codec
from config.network.addresses import Family
from sip.protocol.errors import NotAcceptable, PeerError, UnsupportedBody
from sip.protocol.message import BLANK_LINE, SipMessage, locate_part
from sip.protocol.offer_answer import NegotiatedStream, SrtpUse, match_lines, refusal
from sip.protocol.own_description import as_understood
from sip.protocol.sdp import SessionDescription
from sip.protocol.siprec import CONTENT_TYPES

METHODS = frozenset(("INVITE", "UPDATE", "PRACK", "ACK"))
"""The requests whose body may be an offer or an answer (RFC 3261, RFC 3311, RFC 3262)."""
MAX_BYTES = 32000
"""The most bytes of a description, which are all that PJSIP passes on (PJSUA2_MAX_SDP_BUF_LEN of the build)."""
MAX_LINES = 16
"""The most m-lines. PJSIP drops further ones (its PJMEDIA_MAX_SDP_MEDIA), so they could not be answered."""
MAX_ATTRIBUTES = 256
"""The most attributes of a line, or of the session (PJMEDIA_MAX_SDP_ATTR of the build)."""
MAX_FORMAT = 256
"""The most characters of one format of a line, which is a number or a name."""
MAX_KEYS = 32
"""The most `a=crypto` of a line; an offer has one for each suite that the peer knows."""
Line = NegotiatedStream | NotAcceptable
_ONCE = ("content-type", "content-length", "content-encoding")


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of the check of a description."""

    streams: tuple[NegotiatedStream, ...]
    shown: str
    """The description that PJSIP gets."""


def check(
    packet: bytes,
    codecs: Sequence[Codec],
    *,
    use: SrtpUse = "optional",
    families: Sequence[Family] = ("IP4",),
) -> str:
    """The description that PJSIP gets of the offer in a request with one of `METHODS`; empty without an offer.

    A body with nothing but recording metadata within a dialog is ignored.

    Raises:
        PeerError: the body cannot be accepted; the error has the status and headers of the response.
    """
    found = judge(packet, partial(match_lines, codecs=codecs, use=use, families=families))
    return "" if found is None else found.shown


def judge(packet: bytes, match: Callable[[SessionDescription], Sequence[Line]]) -> Judged | None:
    """Check a request like `check`; returns None without a description. `match` returns the stream of each line."""
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
    """The place of the session description in a request; None without one. Raises PeerError as `check` does."""
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
    """Raises NotAcceptable for a description beyond the limits of PJSIP, or of any real peer."""
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
