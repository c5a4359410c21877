"""Offer and answer (RFC 3264) for telephone audio: PCMU, PCMA, G722 and telephone-event. No I/O.

An answer has the m-lines of its offer, in their order; those that are not used are refused with port 0. The first
codec of the offer that is allowed here is the one (section 6.1: the order of the offer is the peer's preference).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from audio.codec import Codec
from sip import srtp
from sip.errors import NotAcceptable
from sip.sdp import Attribute, Connection, Direction, MediaDescription, Origin, RtpFormat, SessionDescription

TELEPHONE_EVENT = 101
"""Payload type of telephone-event in our own offers."""

_PROTOCOLS = ("RTP/AVP", "RTP/AVPF")
_RTCP = re.compile(r"(\d{1,5})(?: +IN +IP4 +(\S+))?")
_SECURE = ("RTP/SAVP", "RTP/SAVPF")
SrtpUse = Literal["off", "optional", "mandatory"]
_CLOCK_HZ = 8000  # also G.722's, by RFC 3551 section 4.5.2


@dataclass(frozen=True, slots=True)
class NegotiatedStream:
    """One audio m-line both sides agreed on."""

    index: int
    """Position of the m-line."""
    label: str
    """RFC 4574 `a=label`, "" without."""
    codec: Codec
    payload_type: int
    telephone_event: int | None
    direction: Direction
    """Ours: what this side does."""
    remote: tuple[str, int] | None
    """Where the peer receives; None when it does not (hold) or its address is not an IPv4 literal."""
    on_hold: bool
    """The peer put the stream on hold: inactive, the null address, or sendonly."""
    rtcp_mux: bool = False
    crypto: srtp.Crypto | None = None
    """The peer's key; None: not encrypted."""
    control: tuple[str, int] | None = None
    """Where RTCP goes."""


def negotiate(
    offer: SessionDescription, codecs: Sequence[Codec], *, streams: int = 1, use: SrtpUse = "optional"
) -> tuple[NegotiatedStream, ...]:
    """What to answer: the first `streams` audio m-lines with a common codec, encrypted ones before others.

    Raises:
        NotAcceptable: there is none (SIP 488).
    """
    found = [_match(offer, index, media, codecs, use) for index, media in enumerate(offer.media)]
    # The same audio may be offered twice, encrypted and not: then encrypted.
    usable = sorted((stream for stream in found if stream), key=lambda stream: stream.crypto is None)[:streams]
    if not usable:
        secure = any(media.protocol in _SECURE for media in offer.media)
        wanted = {"off": "unencrypted ", "mandatory": "encrypted "}.get(use, "usably encrypted " if secure else "")
        raise NotAcceptable(f"no {wanted}audio stream with a codec that is spoken here")
    return tuple(sorted(usable, key=lambda stream: stream.index))


def make_answer(
    offer: SessionDescription,
    streams: Sequence[NegotiatedStream],
    ports: Mapping[int, int],
    *,
    address: str,
    origin: Origin,
    keys: Mapping[int, srtp.Crypto] = {},
) -> SessionDescription:
    """The answer to `offer`; `ports` and `keys` map the index of an accepted m-line to our RTP port and our key."""
    by_index = {stream.index: stream for stream in streams}
    media = tuple(
        _accepted(line, by_index[index], ports[index], keys.get(index)) if index in by_index else _refused(line)
        for index, line in enumerate(offer.media)
    )
    return SessionDescription(replace(origin, address=address, family="IP4"), media, Connection(address))


def make_offer(codecs: Sequence[Codec], port: int, *, address: str, origin: Origin) -> SessionDescription:
    """One audio stream with `codecs` in order of preference, and telephone-event."""
    formats = tuple(str(codec.payload_type) for codec in codecs) + (str(TELEPHONE_EVENT),)
    attributes = [_rtpmap(codec.payload_type, codec.rtp_name) for codec in codecs]
    attributes += [*_telephone_event(TELEPHONE_EVENT), ("ptime", "20"), ("sendrecv", None)]
    media = MediaDescription("audio", port, "RTP/AVP", formats, attributes=tuple(attributes))
    return SessionDescription(replace(origin, address=address, family="IP4"), (media,), Connection(address))


def accept_answer(answer: SessionDescription, codecs: Sequence[Codec]) -> tuple[NegotiatedStream, ...]:
    """The streams of a peer's answer to `make_offer`. Raises NotAcceptable when it refused them all."""
    return negotiate(answer, codecs)


def _match(
    offer: SessionDescription, index: int, media: MediaDescription, codecs: Sequence[Codec], use: SrtpUse
) -> NegotiatedStream | None:
    if media.kind != "audio" or media.port == 0:
        return None
    crypto = None
    if media.protocol in _SECURE and use != "off":
        if (crypto := srtp.choose([value or "" for name, value in media.attributes if name == "crypto"])) is None:
            return None
    elif media.protocol not in _PROTOCOLS or use == "mandatory":
        return None
    connection = offer.connection_of(media)
    if connection is None or connection.family != "IP4":
        return None
    formats = [f for f in media.rtp_formats() if f.clock_hz == _CLOCK_HZ and f.channels == 1]
    found = next(((codec, f) for f in formats if (codec := _codec(f, codecs)) is not None), None)
    if found is None:
        return None
    codec, chosen = found
    events = (f.payload_type for f in formats if f.encoding == "TELEPHONE-EVENT")
    offered = offer.direction_of(media)
    ours = offered.mirrored
    if connection.null:
        # Nothing may be sent there, whatever the attribute says (RFC 3264 section 8.4).
        ours = Direction.RECVONLY if offered.sends else Direction.INACTIVE
    return NegotiatedStream(
        index,
        media.attribute("label") or "",
        codec,
        chosen.payload_type,
        next(events, None),
        ours,
        _remote(connection, media.port),
        connection.null or not offered.receives,
        media.attribute("rtcp-mux") is not None,
        crypto,
        _control(connection, media),
    )


def _codec(rtp_format: RtpFormat, codecs: Sequence[Codec]) -> Codec | None:
    return next((codec for codec in codecs if codec.rtp_name.upper() == rtp_format.encoding), None)


def _remote(connection: Connection, port: int) -> tuple[str, int] | None:
    address = connection.address.split("/")[0]
    try:
        literal = ipaddress.IPv4Address(address)
    except ValueError:
        return None  # a name: the source is learned from the packets
    return None if connection.null or literal.is_multicast else (str(literal), port)


def _control(connection: Connection, media: MediaDescription) -> tuple[str, int] | None:
    """Where reports go: the same port, the one that `a=rtcp` names (RFC 3605), or the one above."""
    if media.attribute("rtcp-mux") is not None:
        return _remote(connection, media.port)
    named = _RTCP.fullmatch(media.attribute("rtcp") or "")
    if named is None:
        return _remote(connection, media.port + 1)
    return _remote(Connection("IP4", named[2]) if named[2] else connection, int(named[1]))


def _accepted(
    offered: MediaDescription, stream: NegotiatedStream, port: int, key: srtp.Crypto | None
) -> MediaDescription:
    formats = [str(stream.payload_type)]
    attributes = [_rtpmap(stream.payload_type, stream.codec.rtp_name)]
    if stream.telephone_event is not None:
        formats.append(str(stream.telephone_event))
        attributes += _telephone_event(stream.telephone_event)
    attributes.append(("ptime", "20"))
    if stream.label:
        attributes.append(("label", stream.label))
    if stream.rtcp_mux:
        attributes.append(("rtcp-mux", None))
    if key is not None:
        attributes.append(("crypto", str(key)))
    attributes.append((stream.direction.value, None))
    return MediaDescription("audio", port, offered.protocol, tuple(formats), attributes=tuple(attributes))


def _refused(offered: MediaDescription) -> MediaDescription:
    """Port 0 (RFC 3264 section 6). The formats stay: the grammar wants at least one."""
    return MediaDescription(offered.kind, 0, offered.protocol, offered.formats)


def _rtpmap(payload_type: int, name: str) -> Attribute:
    return "rtpmap", f"{payload_type} {name}/{_CLOCK_HZ}"


def _telephone_event(payload_type: int) -> list[Attribute]:
    return [_rtpmap(payload_type, "telephone-event"), ("fmtp", f"{payload_type} 0-15")]


def moved(agreed: Sequence[NegotiatedStream], answered: Sequence[NegotiatedStream]) -> tuple[NegotiatedStream, ...]:
    """What is agreed, to where an answer to an offer of just that moves it; without those that it refuses."""
    by_index = {stream.index: stream for stream in answered}
    return tuple(
        replace(stream, remote=new.remote, control=new.control, direction=new.direction, on_hold=new.on_hold)
        for stream in agreed
        if (new := by_index.get(stream.index)) is not None
    )


def audio_lines(offer: SessionDescription) -> int:
    return max(1, sum(media.kind == "audio" for media in offer.media))


def same_media(ours: SessionDescription, sent: SessionDescription) -> bool:
    """Whether ports, formats and directions are ours. The address may be the null one of a hold, echoed by PJSIP."""

    def essence(description: SessionDescription) -> list[object]:
        return [
            media.port and (media.port, frozenset(media.formats), description.direction_of(media))
            for media in description.media
        ]

    return essence(ours) == essence(sent)
