"""Offer and answer (RFC 3264) for telephone audio: G.711, G.722, Opus and telephone-event. No I/O.

An answer has the m-lines of its offer, in their order; those that are not used are refused with port 0. The first
codec of the offer that is allowed here is the one (section 6.1: the order of the offer is the peer's preference).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from audio.codecs.codec import Codec
from config.addresses import Family, canonical, family_of
from sip.errors import NotAcceptable
from sip.protocol import srtp
from sip.protocol.sdp import (
    Attribute,
    ConnectionLine,
    Direction,
    MediaDescription,
    Origin,
    RtpFormat,
    SessionDescription,
)

TELEPHONE_EVENT = {8000: 101, 48000: 100}
"""Payload types of telephone-event in our own offers, by clock."""

_PROTOCOLS = ("RTP/AVP", "RTP/AVPF")
_RTCP = re.compile(r"(\d{1,5})(?: +IN +(IP4|IP6) +(\S+))?")
_SECURE = ("RTP/SAVP", "RTP/SAVPF")
SrtpUse = Literal["off", "optional", "mandatory"]
_STEPS = (304, 302, 306, 301, 305)
"""Warning codes (RFC 3261 section 20.43), as a line is judged: its kind, transport, keys, address, codec."""
_NO_AUDIO = "no audio line is open"
_WANTED = "maxplaybackrate=16000;stereo=0;useinbandfec=1"
"""What an Opus sender is to know of us (RFC 7587 section 6.1): more is not heard, and the network may lose packets."""


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
    """Where the peer receives; None when it does not (hold) or its address is none of a host's."""
    on_hold: bool
    """The peer put the stream on hold: inactive, the null address, or sendonly."""
    rtcp_mux: bool = False
    crypto: srtp.Crypto | None = None
    """The peer's key; None: not encrypted."""
    control: tuple[str, int] | None = None
    """Where RTCP goes."""
    event_clock_hz: int = 8000
    """Of the `telephone_event`: beside Opus it may be that of the audio (RFC 4733 section 2.1) or not."""
    family: Family = "IP4"
    """Of the addresses at both ends."""


def negotiate(
    offer: SessionDescription,
    codecs: Sequence[Codec],
    *,
    streams: int = 1,
    use: SrtpUse = "optional",
    families: Sequence[Family] = ("IP4",),
    without: Collection[int] = (),
) -> tuple[NegotiatedStream, ...]:
    """What to answer: the first `streams` audio m-lines with a common codec, encrypted ones before others.

    `families`: those that we have addresses of; `without`: indexes of m-lines that are refused, while there are others.

    Raises:
        NotAcceptable: there is none (SIP 488).
    """
    found = match_lines(offer, codecs, use=use, families=families)
    fitting = [line for line in found if isinstance(line, NegotiatedStream)]
    needed = [stream for stream in fitting if stream.index not in without]
    # The same audio may be offered twice, encrypted and not: then encrypted.
    usable = sorted(needed or fitting, key=lambda stream: stream.crypto is None)[:streams]
    if not usable:
        refusals = [line for line in found if isinstance(line, NotAcceptable)]
        # Of the line that came closest to being used.
        raise max(refusals, key=lambda refusal: _STEPS.index(refusal.warning), default=NotAcceptable(_NO_AUDIO, 304))
    return tuple(sorted(usable, key=lambda stream: stream.index))


def match_lines(
    offer: SessionDescription,
    codecs: Sequence[Codec],
    *,
    use: SrtpUse = "optional",
    families: Sequence[Family] = ("IP4",),
) -> list[NegotiatedStream | NotAcceptable]:
    """What each m-line of an offer or an answer comes to: a stream, or the reason why it cannot be used."""
    found: list[NegotiatedStream | NotAcceptable] = []
    for index, media in enumerate(offer.media):
        try:
            found.append(_match(offer, index, media, codecs, use, families))
        except NotAcceptable as refusal:
            found.append(refusal)
    return found


def make_answer(
    offer: SessionDescription,
    streams: Sequence[NegotiatedStream],
    ports: Mapping[int, int],
    *,
    address: str,
    origin: Origin,
    keys: Mapping[int, srtp.Crypto] = {},
    elsewhere: Mapping[int, str] = {},
    reports: Mapping[int, int] = {},
) -> SessionDescription:
    """The answer to `offer`; `ports` and `keys` map the index of an accepted m-line to our RTP port and our key.

    `address` is ours for all of them, but for those that have one in `elsewhere`; `reports` has our RTCP ports where
    they are not the ones above.
    """
    by_index = {stream.index: stream for stream in streams}
    media = tuple(
        _accepted(line, by_index[index], ports[index], keys.get(index), elsewhere.get(index, ""), reports.get(index, 0))
        if index in by_index
        else _refused(line)
        for index, line in enumerate(offer.media)
    )
    return _description(address, origin, media)


def make_offer(codecs: Sequence[Codec], port: int, *, address: str, origin: Origin) -> SessionDescription:
    """One audio stream with `codecs` in order of preference, and telephone-event."""
    clocks = sorted({codec.clock_rate_hz for codec in codecs})
    formats = tuple(map(str, [codec.payload_type for codec in codecs] + [TELEPHONE_EVENT[clock] for clock in clocks]))
    attributes = [attribute for codec in codecs for attribute in _described(codec, codec.payload_type)]
    attributes += [attribute for clock in clocks for attribute in _telephone_event(TELEPHONE_EVENT[clock], clock)]
    attributes += [("ptime", "20"), ("sendrecv", None)]
    media = MediaDescription("audio", port, "RTP/AVP", formats, attributes=tuple(attributes))
    return _description(address, origin, (media,))


def accept_answer(
    answer: SessionDescription, codecs: Sequence[Codec], family: Family = "IP4"
) -> tuple[NegotiatedStream, ...]:
    """The streams of a peer's answer to `make_offer`. Raises NotAcceptable when it refused them all."""
    return negotiate(answer, codecs, families=(family,))


def _description(address: str, origin: Origin, media: tuple[MediaDescription, ...]) -> SessionDescription:
    connection = ConnectionLine(address, family_of(address))
    return SessionDescription(replace(origin, address=address, family=connection.family), media, connection)


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
        # Nothing may be sent there, whatever the attribute says (RFC 3264 section 8.4).
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


def _codec(rtp_format: RtpFormat, codecs: Sequence[Codec]) -> Codec | None:
    return next(
        (
            codec
            for codec in codecs
            if codec.rtp_name.upper() == rtp_format.encoding
            and codec.clock_rate_hz == rtp_format.clock_hz
            and rtp_format.channels in (1, _channels(codec))
        ),
        None,
    )


def _channels(codec: Codec) -> int:
    """In the rtpmap: Opus says two whatever is sent (RFC 7587 section 7)."""
    return 2 if codec is Codec.OPUS else 1


def _events(formats: Sequence[RtpFormat], codec: Codec) -> RtpFormat | None:
    """Digits by the clock of the audio (RFC 4733 section 2.1), or, beside Opus, by the one that all others have."""
    found = {f.clock_hz: f for f in reversed(formats) if f.encoding == "TELEPHONE-EVENT"}
    return found.get(codec.clock_rate_hz) or found.get(8000)


def _remote(connection: ConnectionLine, port: int) -> tuple[str, int] | None:
    address = connection.address.split("/")[0]
    try:
        literal = ipaddress.ip_address(address)
        address = canonical(address)
    except ValueError:
        return None  # a name: the source is learned from the packets
    # From an IPv6 socket nothing gets to an IPv4 address, in whichever spelling.
    mapped = isinstance(literal, ipaddress.IPv6Address) and literal.ipv4_mapped is not None
    other = family_of(address) != connection.family or mapped
    usable = 0 < port < 65536 and not (connection.null or other or literal.is_multicast)
    return (address, port) if usable else None


def _control(connection: ConnectionLine, media: MediaDescription) -> tuple[str, int] | None:
    """Where reports go: the same port, the one that `a=rtcp` names (RFC 3605), or the one above."""
    if media.attribute("rtcp-mux") is not None:
        return _remote(connection, media.port)
    named = _RTCP.fullmatch(media.attribute("rtcp") or "")
    if named is None or named[2] not in (None, connection.family):
        return _remote(connection, media.port + 1)
    return _remote(replace(connection, address=named[3]) if named[3] else connection, int(named[1]))


def _accepted(
    offered: MediaDescription,
    stream: NegotiatedStream,
    port: int,
    key: srtp.Crypto | None,
    elsewhere: str,
    report_port: int,
) -> MediaDescription:
    formats = [str(stream.payload_type)]
    attributes = _described(stream.codec, stream.payload_type)
    if stream.telephone_event is not None:
        formats.append(str(stream.telephone_event))
        attributes += _telephone_event(stream.telephone_event, stream.event_clock_hz)
    attributes.append(("ptime", "20"))
    if stream.label:
        attributes.append(("label", stream.label))
    if stream.rtcp_mux:
        attributes.append(("rtcp-mux", None))
    elif report_port:
        attributes.append(("rtcp", str(report_port)))
    if key is not None:
        attributes.append(("crypto", str(key)))
    attributes.append((stream.direction.value, None))
    connection = ConnectionLine(elsewhere, family_of(elsewhere)) if elsewhere else None
    return MediaDescription("audio", port, offered.protocol, tuple(formats), connection, tuple(attributes))


def _refused(offered: MediaDescription) -> MediaDescription:
    """Port 0 (RFC 3264 section 6). The formats stay: the grammar wants at least one."""
    return MediaDescription(offered.kind, 0, offered.protocol, offered.formats)


def _described(codec: Codec, payload_type: int) -> list[Attribute]:
    mapped = f"{payload_type} {codec.rtp_name}/{codec.clock_rate_hz}"
    if codec is Codec.OPUS:
        return [("rtpmap", f"{mapped}/{_channels(codec)}"), ("fmtp", f"{payload_type} {_WANTED}")]
    return [("rtpmap", mapped)]


def _telephone_event(payload_type: int, clock_hz: int) -> list[Attribute]:
    return [("rtpmap", f"{payload_type} telephone-event/{clock_hz}"), ("fmtp", f"{payload_type} 0-15")]


def moved(agreed: Sequence[NegotiatedStream], answered: Sequence[NegotiatedStream]) -> tuple[NegotiatedStream, ...]:
    """What is agreed, to where an answer to an offer of just that moves it; without those that it refuses."""
    by_index = {stream.index: stream for stream in answered}
    return tuple(
        replace(stream, remote=new.remote, control=new.control, direction=new.direction, on_hold=new.on_hold)
        for stream in agreed
        if (new := by_index.get(stream.index)) is not None and new.family == stream.family
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
