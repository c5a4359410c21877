"""Our own descriptions: offers and answers (RFC 3264) for telephone audio. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from audio.codecs.codec import Codec
from config.network.addresses import family_of
from sip.protocol import srtp
from sip.protocol.offer_answer import NegotiatedStream, channels_of
from sip.protocol.sdp import Attribute, ConnectionLine, Direction, MediaDescription, Origin, SessionDescription

TELEPHONE_EVENT = {8000: 101, 48000: 100}
"""The payload types of telephone-event in our own offers, by clock rate."""
_DYNAMIC = range(96, 128)
_ANYBODY = Origin("-", "1", "1", "127.0.0.1")
_READ = frozenset(("label", "rtcp", "rtcp-mux", "crypto", *(each.value for each in Direction)))
"""The attributes of a peer's description that are used, in addition to those of its formats."""
_WANTED = "maxplaybackrate=16000;stereo=0;useinbandfec=1"
"""The parameters for an Opus sender (RFC 7587 section 6.1): more bandwidth is of no use here, and the network may lose
packets."""


@dataclass(frozen=True, slots=True)
class OwnEnd:
    """Our end of an accepted stream."""

    port: int
    address: str
    key: srtp.Crypto | None = None
    report_port: int = 0
    """The RTCP port if it is not the one above `port`; else 0."""


def make_answer(
    offer: SessionDescription,
    streams: Sequence[NegotiatedStream],
    ends: Mapping[int, OwnEnd],
    origin: Origin,
    *,
    also: Sequence[Codec] = (),
) -> SessionDescription:
    """The answer to `offer`; `ends` are ours, by the index of the accepted m-line.

    With our own last description as `offer` it is also the next offer of the agreed streams (RFC 3264 section 8): the
    lines keep their places, payload types, transports and labels. Then `also` are offered after the codecs in use.
    """
    by_index = {stream.index: stream for stream in streams}
    address = ends[streams[0].index].address
    media = tuple(
        _accepted(line, by_index[index], ends[index], address, also) if index in by_index else _refused(line)
        for index, line in enumerate(offer.media)
    )
    return _description(address, origin, media)


def make_offer(
    codecs: Sequence[Codec], port: int, *, address: str, origin: Origin, key: srtp.Crypto | None = None
) -> SessionDescription:
    """One audio stream with `codecs` in order of preference, and telephone-event; encrypted with our key, if given."""
    formats, attributes = _formats(codecs, {}, {}, {codec.clock_rate_hz for codec in codecs})
    attributes += [("ptime", "20"), *([("crypto", str(key))] if key is not None else []), ("sendrecv", None)]
    protocol = "RTP/AVP" if key is None else "RTP/SAVP"
    media = MediaDescription("audio", port, protocol, formats, attributes=tuple(attributes))
    return _description(address, origin, (media,))


def as_understood(theirs: SessionDescription, streams: Sequence[NegotiatedStream]) -> SessionDescription:
    """A peer's description reduced to these streams, for a parser that might interpret the original differently."""
    by_index = {stream.index: stream for stream in streams}
    media = []
    for index, line in enumerate(theirs.media):
        stream = by_index.get(index)
        if stream is None:
            media.append(_refused(line))
            continue
        events = {} if stream.telephone_event is None else {stream.event_clock_hz: stream.telephone_event}
        formats, attributes = _formats((stream.codec,), {stream.codec: stream.payload_type}, events, ())
        attributes += [each for each in line.attributes if each[0] in _READ]
        at = line.connection and _host(line.connection)
        media.append(MediaDescription("audio", line.port, line.protocol, formats, at, tuple(attributes)))
    session = tuple(each for each in theirs.attributes if each[0] in _READ)
    at = theirs.connection and _host(theirs.connection)
    return SessionDescription(_ANYBODY, tuple(media), at, attributes=session)


def _host(connection: ConnectionLine) -> ConnectionLine:
    """The connection without the suffix for multicast."""
    return replace(connection, address=connection.address.split("/")[0])


def _description(address: str, origin: Origin, media: tuple[MediaDescription, ...]) -> SessionDescription:
    connection = ConnectionLine(address, family_of(address))
    return SessionDescription(replace(origin, address=address, family=connection.family), media, connection)


def _accepted(
    offered: MediaDescription, stream: NegotiatedStream, own: OwnEnd, address: str, also: Sequence[Codec]
) -> MediaDescription:
    """The line of an accepted stream. `address`: the session's, which a line need not repeat."""
    events = {} if stream.telephone_event is None else {stream.event_clock_hz: stream.telephone_event}
    codecs = (stream.codec, *(each for each in also if each is not stream.codec))
    clocks = {codec.clock_rate_hz for codec in also} - events.keys()
    formats, attributes = _formats(codecs, {stream.codec: stream.payload_type}, events, clocks)
    attributes.append(("ptime", "20"))
    if stream.label:
        attributes.append(("label", stream.label))
    if stream.rtcp_mux:
        attributes.append(("rtcp-mux", None))
    elif own.report_port:
        attributes.append(("rtcp", str(own.report_port)))
    if own.key is not None:
        attributes.append(("crypto", str(own.key)))
    attributes.append((stream.direction.value, None))
    connection = ConnectionLine(own.address, family_of(own.address)) if own.address != address else None
    return MediaDescription("audio", own.port, offered.protocol, formats, connection, tuple(attributes))


def _formats(
    codecs: Sequence[Codec], types: Mapping[Codec, int], events: Mapping[int, int], clocks: Collection[int]
) -> tuple[tuple[str, ...], list[Attribute]]:
    """The formats of a line, `codecs` in order of preference and then telephone-event by clock, and the attributes that
    describe them.

    `types`, `events`: payload types that are in use, by codec and by clock; `clocks`: of further telephone-events.
    """
    in_use = {*types.values(), *events.values()}

    def free(preferred: int) -> int:
        found = preferred if preferred not in in_use else next(number for number in _DYNAMIC if number not in in_use)
        in_use.add(found)
        return found

    coded = {codec: types[codec] if codec in types else free(codec.payload_type) for codec in codecs}
    numbered = dict(sorted((dict(events) | {clock: free(TELEPHONE_EVENT[clock]) for clock in sorted(clocks)}).items()))
    attributes = [attribute for codec, number in coded.items() for attribute in _described(codec, number)]
    attributes += [attribute for clock, number in numbered.items() for attribute in _telephone_event(number, clock)]
    return tuple(map(str, (*coded.values(), *numbered.values()))), attributes


def _refused(offered: MediaDescription) -> MediaDescription:
    """A refused line, with port 0 (RFC 3264 section 6). The formats stay, because the grammar requires at least one."""
    return MediaDescription(offered.kind, 0, offered.protocol, offered.formats)


def _described(codec: Codec, payload_type: int) -> list[Attribute]:
    mapped = f"{payload_type} {codec.rtp_name}/{codec.clock_rate_hz}"
    if codec is Codec.OPUS:
        return [("rtpmap", f"{mapped}/{channels_of(codec)}"), ("fmtp", f"{payload_type} {_WANTED}")]
    return [("rtpmap", mapped)]


def _telephone_event(payload_type: int, clock_hz: int) -> list[Attribute]:
    return [("rtpmap", f"{payload_type} telephone-event/{clock_hz}"), ("fmtp", f"{payload_type} 0-15")]
