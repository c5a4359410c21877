"""The media of one call: its sockets and keys, our session descriptions, and the streams that the handler gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from audio.codecs.codec import Codec
from config.network.addresses import Family, family_of
from sip.media.rtp_socket import RtpSocket
from sip.protocol import srtp
from sip.protocol.negotiation import Streams
from sip.protocol.offer_answer import NegotiatedStream
from sip.protocol.own_description import OwnEnd, make_answer, make_offer
from sip.protocol.sdp import Direction, SessionDescription

_Place = tuple[int, Family]
"""(index of the m-line, address family): a stream that changes its family gets another socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaStream(NegotiatedStream):
    """One audio stream of a call, as negotiated. The handler sets `socket.leg`."""

    held: bool
    """Whether the peer holds. A recorder's stream is sendonly from the start, which is not a hold."""
    socket: RtpSocket


class MediaHost(Protocol):
    """The provider of a call's sockets and addresses."""

    send_silence: bool

    def open_socket(self, family: Family) -> RtpSocket: ...
    def local_address(self, family: Family, peer: str) -> str: ...


class CallMedia:
    """The media of a call. Sockets are opened for an offer, and closed when the agreed streams no longer need them."""

    def __init__(self, host: MediaHost, peer: str) -> None:
        """`peer`: the source address of the INVITE."""
        self.streams: list[MediaStream] = []
        self._host, self._peer = host, peer
        self._sockets: dict[_Place, RtpSocket] = {}
        self._keys: dict[tuple[int, srtp.Crypto], srtp.Crypto] = {}
        """(index of the m-line, the peer's key) → our key."""
        self._started_sendrecv = self._listens_only = False

    @property
    def family(self) -> Family:
        """The address family of our offer."""
        return next((family for _, family in self._sockets), family_of(self._peer))

    def reserve(self, streams: Streams) -> None:
        """Open the sockets of these streams. Raises PortsExhausted."""
        for stream in streams:
            self._socket(stream)

    def reserve_for_offer(self) -> None:
        """Open a socket for an offer of ours. Raises PortsExhausted."""
        family = self.family
        self._sockets[0, family] = self._host.open_socket(family)

    def first_offer(
        self, codecs: Sequence[Codec], template: SessionDescription, *, encrypted: bool
    ) -> SessionDescription:
        """Our offer before anything is agreed. `template` has PJSIP's origin line."""
        socket = next(iter(self._sockets.values()))
        address, port = socket.mapped or (self._address(self.family, socket.source), socket.port)
        socket.expect_another(True)
        key = srtp.Crypto.fresh() if encrypted else None
        return make_offer(codecs, port, address=address, origin=template.origin, key=key)

    def next_offer(
        self, last: SessionDescription, streams: Streams, codecs: Sequence[Codec], template: SessionDescription
    ) -> SessionDescription:
        """Our offer of the agreed streams, with both directions even if the peer holds (RFC 6337 section 5.3).

        `last` is our description in force.
        """
        direction = Direction.RECVONLY if self._listens_only else Direction.SENDRECV
        return self.answer(last, tuple(replace(each, direction=direction) for each in streams), template, also=codecs)

    def answer(
        self, offer: SessionDescription, streams: Streams, template: SessionDescription, *, also: Sequence[Codec] = ()
    ) -> SessionDescription:
        """Our answer to an offer, which accepts these streams. `template` has PJSIP's origin line; `also`: see
        `make_answer`."""
        ends = {}
        for stream in streams:
            socket, key = self._socket(stream), self._own_key(stream.index, stream.crypto) if stream.crypto else None
            address, port = socket.mapped or (self._address(stream.family, stream.remote or socket.source), socket.port)
            report_port = socket.mapped_reports[1] if socket.mapped_reports else port + 1
            ends[stream.index] = OwnEnd(port, address, key, report_port if report_port != port + 1 else 0)
            socket.expect_another(True)  # audio may arrive before PJSIP reports that the answer was sent
        return make_answer(offer, streams, ends, template.origin, also=also)

    def keep_keys(self, offer: SessionDescription, streams: Streams) -> None:
        """Keep our keys in an offer of ours for the keys in these streams, which answer it."""
        for stream in streams:
            if stream.crypto and (own := srtp.choose([offer.media[stream.index].attribute("crypto") or ""])):
                self._keys[stream.index, stream.crypto] = own

    def expect_no_other(self) -> None:
        """Let the sockets filter again, because no pending description can change their sources."""
        for socket in self._sockets.values():
            socket.expect_another(False)

    def commit(self, streams: Streams, ahead: Streams) -> None:
        """Apply the agreed streams. `ahead` are those of pending answers, which keep their sockets and keys."""
        if not self.streams:
            self._started_sendrecv = any(stream.direction is Direction.SENDRECV for stream in streams)
            # A hold by the null address does not tell the other direction.
            self._listens_only = all(each.direction is Direction.RECVONLY and each.remote for each in streams)
        kept = streams + ahead
        for place in self._sockets.keys() - {(stream.index, stream.family) for stream in kept}:
            self._sockets[place].drain()
            self._sockets.pop(place).close()
        for key in self._keys.keys() - {(stream.index, stream.crypto) for stream in kept}:
            del self._keys[key]
        self.streams[:] = [self._stream(stream) for stream in streams]

    def drain(self) -> None:
        """Read the packets that arrived before the BYE."""
        for socket in self._sockets.values():
            socket.drain()

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()

    def _socket(self, stream: NegotiatedStream) -> RtpSocket:
        """The stream's socket, which is opened if there is none: the stream may have moved to the other family."""
        place = stream.index, stream.family
        if place not in self._sockets:
            self._sockets[place] = self._host.open_socket(stream.family)
        return self._sockets[place]

    def _address(self, family: Family, media: tuple[str, int] | None) -> str:
        """Our address that faces the caller, or the peer's media if that has the other family."""
        faced = self._peer if family_of(self._peer) == family else media[0] if media else ""
        return self._host.local_address(family, faced)

    def _own_key(self, index: int, theirs: srtp.Crypto) -> srtp.Crypto:
        """Our key for a key of the peer; a peer that repeats its key keeps ours."""
        return self._keys.setdefault((index, theirs), theirs.own())

    def _stream(self, agreed: NegotiatedStream) -> MediaStream:
        socket = self._sockets[agreed.index, agreed.family]
        silence = self._host.send_silence and agreed.direction.sends
        keys = (agreed.crypto, self._own_key(agreed.index, agreed.crypto)) if agreed.crypto else None
        socket.expect(
            agreed.remote, agreed.codec, agreed.payload_type, silence=silence, keys=keys, control=agreed.control
        )
        held = agreed.on_hold and (self._started_sendrecv or agreed.direction is Direction.INACTIVE)
        as_agreed = {each.name: getattr(agreed, each.name) for each in fields(agreed)}
        return MediaStream(**as_agreed, held=held, socket=socket)
