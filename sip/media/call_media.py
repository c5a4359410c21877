"""The media of one call: its sockets and keys, our descriptions of them, and the streams that the handler sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from audio.codecs.codec import Codec
from config.addresses import Family, family_of
from sip.media.rtp_socket import RtpSocket
from sip.protocol import srtp
from sip.protocol.negotiation import Streams
from sip.protocol.offer_answer import NegotiatedStream
from sip.protocol.own_description import OwnEnd, make_answer, make_offer
from sip.protocol.sdp import Direction, SessionDescription

_Place = tuple[int, Family]
"""Index of the m-line, and which addresses it has: a stream that changes the family gets another socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaStream(NegotiatedStream):
    """One audio stream of a call, as it was agreed. The handler sets `socket.leg`."""

    held: bool
    """The peer holds. A recorder's stream is sendonly from the start, and not held."""
    socket: RtpSocket


class MediaHost(Protocol):
    """Where a call has its sockets and addresses from."""

    send_silence: bool

    def open_socket(self, family: Family) -> RtpSocket: ...
    def local_address(self, family: Family, peer: str) -> str: ...


class CallMedia:
    """Sockets are opened for what an offer asks for, and closed when what is agreed no longer needs them."""

    def __init__(self, host: MediaHost, peer: str) -> None:
        """`peer`: the address that the INVITE came from."""
        self.streams: list[MediaStream] = []
        self._host, self._peer = host, peer
        self._sockets: dict[_Place, RtpSocket] = {}
        self._keys: dict[tuple[int, srtp.Crypto], srtp.Crypto] = {}
        """Our key by the index of the m-line and the peer's key."""
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
        """Our offer when nothing is agreed. `template` has PJSIP's origin line."""
        socket = next(iter(self._sockets.values()))
        address, port = socket.mapped or (self._address(self.family, socket.source), socket.port)
        socket.expect_another(True)
        key = srtp.Crypto.fresh() if encrypted else None
        return make_offer(codecs, port, address=address, origin=template.origin, key=key)

    def next_offer(
        self, last: SessionDescription, streams: Streams, codecs: Sequence[Codec], template: SessionDescription
    ) -> SessionDescription:
        """Our offer of what is agreed, with both directions again where the peer holds (RFC 6337 section 5.3). `last`:
        our description in force."""
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
            socket.expect_another(True)  # its audio may be here before the answer has been seen to go out
        return make_answer(offer, streams, ends, template.origin, also=also)

    def keep_keys(self, offer: SessionDescription, streams: Streams) -> None:
        """These streams answer this offer of ours: the keys in it are ours for theirs."""
        for stream in streams:
            if stream.crypto and (own := srtp.choose([offer.media[stream.index].attribute("crypto") or ""])):
                self._keys[stream.index, stream.crypto] = own

    def expect_no_other(self) -> None:
        """No description on its way changes what comes to the sockets."""
        for socket in self._sockets.values():
            socket.expect_another(False)

    def commit(self, streams: Streams, ahead: Streams) -> None:
        """These streams are agreed; `ahead` are those of answers on their way, which keep their sockets and keys."""
        if not self.streams:
            self._started_sendrecv = any(stream.direction is Direction.SENDRECV for stream in streams)
            # A peer that holds by the null address has said nothing of the other direction.
            self._listens_only = all(each.direction is Direction.RECVONLY and each.remote for each in streams)
        kept = streams + ahead
        for place in self._sockets.keys() - {(stream.index, stream.family) for stream in kept}:
            self._sockets[place].drain()
            self._sockets.pop(place).close()
        for key in self._keys.keys() - {(stream.index, stream.crypto) for stream in kept}:
            del self._keys[key]
        self.streams[:] = [self._stream(stream) for stream in streams]

    def drain(self) -> None:
        """Read what came before the BYE."""
        for socket in self._sockets.values():
            socket.drain()

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()

    def _socket(self, stream: NegotiatedStream) -> RtpSocket:
        """The stream's, opened when there is none: it may have moved to the other family."""
        place = stream.index, stream.family
        if place not in self._sockets:
            self._sockets[place] = self._host.open_socket(stream.family)
        return self._sockets[place]

    def _address(self, family: Family, media: tuple[str, int] | None) -> str:
        """Ours that faces the caller, or the peer's media when that has the other family."""
        faced = self._peer if family_of(self._peer) == family else media[0] if media else ""
        return self._host.local_address(family, faced)

    def _own_key(self, index: int, theirs: srtp.Crypto) -> srtp.Crypto:
        """The one that we gave for theirs: a peer that repeats its key goes on with ours."""
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
