"""Finds the RTP streams of a capture: the packets that arrived at one address, and their description by the SIP in the
capture.

Without SIP a stream is recognised by its packets: RTP version 2, one SSRC, ascending sequence numbers. A leg is every
packet to one address, also from strangers and with other SSRCs, because a worker listening there would have received
them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from audio import Codec, is_rtcp
from mediaworker.replay.datagrams import Address, Datagram
from mediaworker.replay.pcap import CaptureError
from sip.protocol.errors import PeerError
from sip.protocol.message import SipMessage
from sip.protocol.sdp import SessionDescription

MIN_RUN = 8
"""The number of consecutive packets of one SSRC from which on they count as a stream."""
_STATIC = {codec.payload_type: codec for codec in (Codec.PCMU, Codec.PCMA, Codec.G722)}


@dataclass(frozen=True, slots=True)
class Description:
    """The codec and payload types that are in force at an address from `at_s` on."""

    at_s: float
    codec: Codec
    payload_type: int
    telephone_event: int | None


@dataclass(slots=True)
class CapturedStream:
    source: Address
    """The source of the longest run of packets in sequence. The latch treats it as the address in the peer's SDP."""
    target: Address
    call: str
    """The Call-ID, or without SIP a text that the two directions of a call have in common."""
    descriptions: list[Description]
    packets: list[Datagram] = field(repr=False)


@dataclass(slots=True)
class _Offer:
    """The description of a receiving address by an SDP."""

    at_s: float
    call: str
    formats: dict[int, str]


@dataclass(slots=True)
class _Run:
    """The runs of consecutive packets of one SSRC between two addresses."""

    ssrc: bytes = b""
    sequence: int = -1
    longest: int = 0
    length: int = 0

    def add(self, payload: bytes) -> None:
        ssrc, sequence = payload[8:12], int.from_bytes(payload[2:4], "big")
        follows = ssrc == self.ssrc and 0 < (sequence - self.sequence & 0xFFFF) < 16
        self.length = self.length + 1 if follows else 1
        self.longest = max(self.longest, self.length)
        self.ssrc, self.sequence = ssrc, sequence


@dataclass(slots=True)
class Capture:
    streams: list[CapturedStream]
    signalling: list[Datagram]
    """The datagrams of SIP over UDP."""


def find(datagrams: Iterable[Datagram], *, codec: Codec | None = None, payload_type: int | None = None) -> Capture:
    """Return the streams of a capture. Raises CaptureError when there is none. `codec`, `payload_type`: override those
    of the SDP and of the packets for all streams."""
    arrived: dict[Address, list[Datagram]] = defaultdict(list)
    runs: dict[tuple[Address, Address], _Run] = defaultdict(_Run)
    offers: dict[Address, list[_Offer]] = defaultdict(list)
    signalling: list[Datagram] = []
    for datagram in datagrams:
        payload = datagram.payload
        if datagram.udp and len(payload) >= 12 and payload[0] >> 6 == 2:
            arrived[datagram.target].append(datagram)
            if not is_rtcp(payload):
                runs[datagram.source, datagram.target].add(payload)
        elif b"SIP/2.0" in payload[:1024]:
            if datagram.udp:
                signalling.append(datagram)
            for address, offer in _offers(datagram):
                offers[address].append(offer)
    streams, unknown = [], Counter[int]()
    for target, packets in arrived.items():
        source, run = max(
            ((source, run) for (source, to), run in runs.items() if to == target),
            key=lambda found: found[1].longest,
            default=((("", 0)), _Run()),
        )
        if run.longest < MIN_RUN:
            continue
        described = offers[target] or offers[source]
        descriptions = list(_descriptions(packets, source, described, codec, payload_type))
        if not descriptions:
            unknown.update(packet.payload[1] & 0x7F for packet in packets if packet.source == source)
            continue
        call = described[0].call if described else "-".join(sorted(f"{host}:{port}" for host, port in (source, target)))
        streams.append(CapturedStream(source, target, call, descriptions, packets))
    if not streams and unknown:
        names = ", ".join(str(kind) for kind, _ in unknown.most_common(3))
        raise CaptureError(f"RTP of unknown payload type {names}: say --codec and --payload-type")
    if not streams:
        raise CaptureError("no RTP stream in it")
    streams.sort(key=lambda stream: stream.packets[0].at_s)
    return Capture(streams, signalling)


def _offers(datagram: Datagram) -> Iterator[tuple[Address, _Offer]]:
    try:
        message = SipMessage.parse(datagram.payload.decode(errors="replace"))
        body = message.part("application/sdp")
        description = SessionDescription.parse(body) if body else None
    except PeerError:
        return
    for media in description.media if description is not None else ():
        connection = description.connection_of(media) if description is not None else None
        if media.kind == "audio" and media.port and connection is not None:
            formats = {each.payload_type: each.encoding for each in media.rtp_formats() if each.channels == 1}
            yield ((connection.address, media.port), _Offer(datagram.at_s, message.header("call-id"), formats))


def _descriptions(
    packets: list[Datagram], source: Address, offers: list[_Offer], codec: Codec | None, payload_type: int | None
) -> Iterator[Description]:
    """Yield a description for each SDP of the address that the packets confirm and that changes something."""
    begins = [float("-inf")] + [offer.at_s for offer in offers[1:] if offer.at_s > packets[0].at_s]
    latest: tuple[Codec, int, int | None] | None = None
    for index, begin in enumerate(begins):
        end = begins[index + 1] if index + 1 < len(begins) else float("inf")
        formats = dict[int, str]()
        for offer in offers:
            if offer.at_s <= max(begin, packets[0].at_s):
                formats = offer.formats
        own = [p.payload for p in packets if begin <= p.at_s < end and p.source == source and not is_rtcp(p.payload)]
        found = _codec(own, formats, codec, payload_type)
        if found is not None and found != latest:
            latest = found
            yield Description(max(begin, packets[0].at_s), *found)


def _codec(
    own: list[bytes], formats: dict[int, str], codec: Codec | None, payload_type: int | None
) -> tuple[Codec, int, int | None] | None:
    counts = Counter(payload[1] & 0x7F for payload in own)
    known = {pt: Codec[name] for pt, name in formats.items() if name in ("PCMU", "PCMA", "G722", "OPUS")} or _STATIC
    events = [pt for pt, name in formats.items() if name == "TELEPHONE-EVENT"]
    if not formats:  # without SDP: a dynamic type whose packets all have four bytes is telephone-event (RFC 4733)
        sizes = defaultdict(set)
        for payload in own:
            sizes[payload[1] & 0x7F].add(len(payload) - 12)
        events = [pt for pt, seen in sizes.items() if pt >= 96 and seen == {4}]
    if payload_type is not None or codec is not None:
        kinds = [pt for pt, _ in counts.most_common() if pt not in events and (codec is not None or pt in known)]
        chosen = payload_type if payload_type is not None else next(iter(kinds), None)
        if chosen is None:
            return None
        kind = codec or known.get(chosen)
        return (kind, chosen, next(iter(events), None)) if kind is not None else None
    best = next((pt for pt, _ in counts.most_common() if pt in known), None)
    return None if best is None else (known[best], best, next(iter(events), None))
