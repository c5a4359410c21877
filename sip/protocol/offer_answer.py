"""Offer and answer (RFC 3264) for telephone audio: G.711, G.722, Opus and telephone-event. No I/O.

An answer has the m-lines of its offer, in their order; unused ones are refused with port 0. The first codec of the
offer that is allowed here is chosen (section 6.1: the order of the offer is the peer's preference).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from audio.codecs.codec import Codec
from config.network.addresses import Family, canonical, family_of
from sip.protocol import srtp
from sip.protocol.errors import NotAcceptable, SdpError
from sip.protocol.sdp import (
    ConnectionLine,
    Direction,
    MediaDescription,
    RtpFormat,
    SessionDescription,
)

EVENTS = "TELEPHONE-EVENT"
LAST_CODEC, FIRST_DYNAMIC = 34, 96
"""Payload types up to the first are those of codecs (RFC 3551 section 6). Below the second PJSIP goes by the number,
whatever an rtpmap says: it knows no codec between the two, and no telephone-event."""
_PROTOCOLS = ("RTP/AVP", "RTP/AVPF")
_RTCP = re.compile(r"(\d{1,5})(?: +IN +(IP4|IP6) +(\S+))?")
_SECURE = ("RTP/SAVP", "RTP/SAVPF")
SrtpUse = Literal["off", "optional", "mandatory"]
_STEPS = (304, 302, 306, 301, 305)
"""The Warning codes (RFC 3261 section 20.43), in the order of the checks: kind, transport, keys, address, codec."""
_NO_AUDIO = "no audio line is open"


@dataclass(frozen=True, slots=True)
class NegotiatedStream:
    """One audio m-line both sides agreed on."""

    index: int
    """The position of the m-line."""
    label: str
    """RFC 4574 `a=label`, "" without."""
    codec: Codec
    payload_type: int
    telephone_event: int | None
    direction: Direction
    """The direction from our side."""
    remote: tuple[str, int] | None
    """Where the peer receives; None if it does not (hold), or if its address is no host's."""
    on_hold: bool
    """Whether the peer put the stream on hold: inactive, the null address, or sendonly."""
    rtcp_mux: bool = False
    crypto: srtp.Crypto | None = None
    """The peer's key; None without encryption."""
    control: tuple[str, int] | None = None
    """The destination of RTCP."""
    event_clock_hz: int = 8000
    """The clock rate of `telephone_event`, which with Opus may differ from that of the audio (RFC 4733 section 2.1)."""
    family: Family = "IP4"
    """The family of the addresses at both ends."""


def negotiate(
    offer: SessionDescription,
    codecs: Sequence[Codec],
    *,
    streams: int = 1,
    use: SrtpUse = "optional",
    families: Sequence[Family] = ("IP4",),
    without: Collection[int] = (),
) -> tuple[NegotiatedStream, ...]:
    """The streams to answer with: the first `streams` audio m-lines with a common codec, encrypted ones before others.

    `families`: those of our addresses; `without`: indexes of m-lines to refuse, if there are others.

    Raises:
        NotAcceptable: there is none (SIP 488).
    """
    found = match_lines(offer, codecs, use=use, families=families)
    fitting = [line for line in found if isinstance(line, NegotiatedStream)]
    needed = [stream for stream in fitting if stream.index not in without]
    # If the same audio is offered twice, encrypted and not, the encrypted line is chosen.
    usable = sorted(needed or fitting, key=lambda stream: stream.crypto is None)[:streams]
    if not usable:
        raise refusal(found)
    return tuple(sorted(usable, key=lambda stream: stream.index))


def refusal(lines: Sequence[NegotiatedStream | NotAcceptable]) -> NotAcceptable:
    """The refusal of the line that passed the most checks."""
    refusals = [line for line in lines if isinstance(line, NotAcceptable)]
    return max(refusals, key=lambda each: _STEPS.index(each.warning), default=NotAcceptable(_NO_AUDIO, 304))


def match_lines(
    offer: SessionDescription,
    codecs: Sequence[Codec],
    *,
    use: SrtpUse = "optional",
    families: Sequence[Family] = ("IP4",),
) -> list[NegotiatedStream | NotAcceptable]:
    """The stream of each m-line of an offer, or the reason why it cannot be used."""
    return [_or_refused(_match, offer, index, media, codecs, use, families) for index, media in enumerate(offer.media)]


def match_answer(
    offer: SessionDescription, answer: SessionDescription, codecs: Sequence[Codec]
) -> list[NegotiatedStream | NotAcceptable]:
    """The stream of each m-line of our offer and its answer, or the reason against it.

    Lines that were not offered are ignored. Raises SdpError if lines are missing.
    """
    if len(answer.media) < len(offer.media):
        raise SdpError(f"an answer of {len(answer.media)} media lines to an offer of {len(offer.media)}")
    pairs = enumerate(zip(offer.media, answer.media, strict=False))
    return [_or_refused(_answered, offer, index, ours, answer, theirs, codecs) for index, (ours, theirs) in pairs]


def _or_refused(match: Callable[..., NegotiatedStream], *line: object) -> NegotiatedStream | NotAcceptable:
    try:
        return match(*line)
    except NotAcceptable as refused:
        return refused


def accept_answer(
    offer: SessionDescription, answer: SessionDescription, codecs: Sequence[Codec]
) -> tuple[NegotiatedStream, ...]:
    """The streams of a peer's answer. Raises NotAcceptable if all are refused, and SdpError as `match_answer`."""
    found = match_answer(offer, answer, codecs)
    streams = tuple(line for line in found if isinstance(line, NegotiatedStream))
    if not streams:
        raise refusal(found)
    return streams


def _match(
    offer: SessionDescription,
    index: int,
    media: MediaDescription,
    codecs: Sequence[Codec],
    use: SrtpUse,
    families: Sequence[Family],
) -> NegotiatedStream:
    """Raises NotAcceptable, at one of `_STEPS`."""
    if media.kind != "audio" or media.port == 0:
        raise NotAcceptable(_NO_AUDIO, 304)
    crypto = None
    if media.protocol not in _PROTOCOLS + _SECURE:
        raise NotAcceptable(f"the audio has a transport other than {', '.join(_PROTOCOLS + _SECURE)}", 302)
    if media.protocol in _SECURE:
        if use == "off":
            raise NotAcceptable("encrypted audio is turned off here", 302)
        if (crypto := srtp.choose([value or "" for name, value in media.attributes if name == "crypto"])) is None:
            raise NotAcceptable("the encrypted audio has no a=crypto whose key can be used here", 306)
    elif use == "mandatory":
        raise NotAcceptable("only encrypted audio is accepted here", 302)
    connection = offer.connection_of(media)
    family = next((each for each in families if connection is not None and connection.family == each), None)
    if connection is None or family is None:
        raise NotAcceptable(f"no audio over {' or '.join(families).replace('IP', 'IPv')}", 301)
    formats = media.rtp_formats()
    found = next(((codec, f) for f in formats if (codec := _codec(f, codecs)) is not None), None)
    if found is None:
        raise NotAcceptable("no audio with a codec that is spoken here", 305)
    codec, chosen = found
    events = _events(formats, codec)
    offered = offer.direction_of(media)
    ours = offered.mirrored
    if connection.null:
        # Nothing may be sent to the null address, whatever the attribute says (RFC 3264 section 8.4).
        ours = Direction.RECVONLY if offered.sends else Direction.INACTIVE
    return NegotiatedStream(
        index,
        media.attribute("label") or "",
        codec,
        chosen.payload_type,
        events.payload_type if events is not None else None,
        ours,
        _remote(connection, media.port),
        connection.null or not offered.receives,
        media.attribute("rtcp-mux") is not None,
        crypto,
        _control(connection, media),
        events.clock_hz if events is not None else 8000,
        family,
    )


def _answered(
    offer: SessionDescription,
    index: int,
    ours: MediaDescription,
    answer: SessionDescription,
    theirs: MediaDescription,
    codecs: Sequence[Codec],
) -> NegotiatedStream:
    """Raises NotAcceptable."""
    connection = offer.connection_of(ours)
    assert connection is not None, "ours has one"
    secure, family = ours.protocol in _SECURE, family_of(connection.address)
    stream = _match(answer, index, theirs, codecs, "mandatory" if secure else "off", (family,)) if ours.port else None
    if stream is None:
        raise NotAcceptable(_NO_AUDIO, 304)
    # Only one key was offered, so the tag is redundant (RFC 4568 section 5.1.2), and some peers omit it.
    own = srtp.choose([ours.attribute("crypto") or ""])
    if stream.crypto is not None and (own is None or own.suite != stream.crypto.suite):
        raise NotAcceptable("the encrypted audio has another suite than was offered", 306)
    formats = ours.rtp_formats()
    # The peer must send under the payload types of our offer (RFC 3264 section 5.1).
    coded = next((each for each in formats if _codec(each, (stream.codec,)) is not None), None)
    if coded is None:
        raise NotAcceptable("a codec that was not offered", 305)
    events = _events(formats, stream.codec)
    offered, direction = offer.direction_of(ours), stream.direction
    return replace(
        stream,
        label=ours.attribute("label") or "",
        payload_type=coded.payload_type,
        telephone_event=events.payload_type if events is not None else None,
        event_clock_hz=events.clock_hz if events is not None else 8000,
        direction=Direction.of(offered.sends and direction.sends, offered.receives and direction.receives),
        rtcp_mux=stream.rtcp_mux and ours.attribute("rtcp-mux") is not None,
    )


def _codec(rtp_format: RtpFormat, codecs: Sequence[Codec]) -> Codec | None:
    return next(
        (
            codec
            for codec in codecs
            if not LAST_CODEC < rtp_format.payload_type < FIRST_DYNAMIC
            and codec.rtp_name.upper() == rtp_format.encoding
            and codec.clock_rate_hz == rtp_format.clock_hz
            and rtp_format.channels in (1, channels_of(codec))
        ),
        None,
    )


def channels_of(codec: Codec) -> int:
    """The number of channels in the rtpmap, which is always two for Opus (RFC 7587 section 7)."""
    return 2 if codec is Codec.OPUS else 1


def _events(formats: Sequence[RtpFormat], codec: Codec) -> RtpFormat | None:
    """The telephone-event format with the clock of the audio (RFC 4733 section 2.1), or else with 8 kHz."""
    dynamic = (f for f in reversed(formats) if f.encoding == EVENTS and f.payload_type >= FIRST_DYNAMIC)
    found = {f.clock_hz: f for f in dynamic}
    return found.get(codec.clock_rate_hz) or found.get(8000)


def _remote(connection: ConnectionLine, port: int) -> tuple[str, int] | None:
    address = connection.address.split("/")[0]
    try:
        literal = ipaddress.ip_address(address)
        address = canonical(address)
    except ValueError:
        return None  # a name: the source is learned from the packets
    # An IPv6 socket cannot send to an IPv4 address, even in mapped form.
    mapped = isinstance(literal, ipaddress.IPv6Address) and literal.ipv4_mapped is not None
    other = family_of(address) != connection.family or mapped
    usable = 0 < port < 65536 and not (connection.null or other or literal.is_multicast)
    return (address, port) if usable else None


def _control(connection: ConnectionLine, media: MediaDescription) -> tuple[str, int] | None:
    """The destination of RTCP: the same port, the one in `a=rtcp` (RFC 3605), or the one above."""
    if media.attribute("rtcp-mux") is not None:
        return _remote(connection, media.port)
    named = _RTCP.fullmatch(media.attribute("rtcp") or "")
    if named is None or named[2] not in (None, connection.family):
        return _remote(connection, media.port + 1)
    return _remote(replace(connection, address=named[3]) if named[3] else connection, int(named[1]))


def moved(agreed: Sequence[NegotiatedStream], answered: Sequence[NegotiatedStream]) -> tuple[NegotiatedStream, ...]:
    """The agreed streams with addresses and directions from the answer to an offer of them, without refused ones."""
    by_index = {stream.index: stream for stream in answered}
    return tuple(
        replace(stream, remote=new.remote, control=new.control, direction=new.direction, on_hold=new.on_hold)
        for stream in agreed
        if (new := by_index.get(stream.index)) is not None and new.family == stream.family
    )


def audio_lines(offer: SessionDescription) -> int:
    return max(1, sum(media.kind == "audio" for media in offer.media))


def same_media(ours: SessionDescription, sent: SessionDescription) -> bool:
    """Whether ports, formats and directions are equal. The address may be a hold's null one, echoed by PJSIP."""

    def essence(description: SessionDescription) -> list[object]:
        return [
            media.port and (media.port, frozenset(media.formats), description.direction_of(media))
            for media in description.media
        ]

    return essence(ours) == essence(sent)
