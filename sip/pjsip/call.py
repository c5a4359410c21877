"""One inbound call: its streams, and what a re-INVITE does to them. `sip.pjsip.dialog` is its side in PJSIP.

The SDP that PJSIP makes is replaced by ours when it is made. Nothing of a re-INVITE takes effect there: it is
kept as pending and committed when the 200 has gone out with that very description; a refused re-INVITE changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from audio.codecs.codec import Codec
from config.addresses import Family, family_of
from sip.errors import NotAcceptable, PeerError, PortsExhausted
from sip.media.rtp_socket import RtpSocket
from sip.pjsip.liveness import UNKNOWN_CALL
from sip.protocol import siprec, srtp
from sip.protocol.message import SipMessage, address_uri, tag_of
from sip.protocol.offer_answer import (
    NegotiatedStream,
    SrtpUse,
    audio_lines,
    make_answer,
    make_offer,
    moved,
    negotiate,
    same_media,
)
from sip.protocol.sdp import Direction, SessionDescription
from sip.protocol.trace import mask_message

if TYPE_CHECKING:
    from sip.pjsip.dialog import Dialog

log = structlog.get_logger("sip")

_Place = tuple[int, Family]
"""Index of the m-line, and which addresses it has: what changes the family gets another socket."""


@dataclass(slots=True)
class MediaStream:
    """One audio stream of a call. The handler sets `socket.leg`."""

    index: int
    label: str
    codec: Codec
    payload_type: int
    telephone_event: int | None
    direction: Direction
    """Ours: after a hold by the peer it is recvonly or inactive."""
    held: bool
    socket: RtpSocket
    event_clock_hz: int = 8000
    """Of the `telephone_event`."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Our description on its way out; `streams` is None when it is an offer, so that the answer is still to come."""

    description: SessionDescription
    streams: tuple[NegotiatedStream, ...] | None


class CallHost(Protocol):
    """What a call needs of its endpoint."""

    codecs: tuple[Codec, ...]
    send_silence: bool
    srtp: SrtpUse
    families: tuple[Family, ...]
    ignore_mixed: bool
    """Refuse the mixed stream of a recording session."""

    @property
    def max_streams(self) -> int: ...

    def open_socket(self, family: Family) -> RtpSocket: ...
    def dialog_opened(self, call: SipCall) -> None: ...
    def peer_answered(self, call: SipCall, status: int) -> None: ...
    def local_address(self, family: Family, peer: str) -> str: ...
    def media_ready(self, call: SipCall) -> None: ...
    def media_changed(self, call: SipCall) -> None: ...
    def metadata_changed(self, call: SipCall) -> None: ...
    def metadata_refused(self, call: SipCall, error: PeerError) -> None: ...
    def digit(self, call: SipCall, digit: str, duration_ms: int) -> None: ...
    def ended(self, call: SipCall, reason: str) -> None: ...
    def mismatch(self, call: SipCall) -> None: ...


class SipCall:
    """A call as the handler sees it."""

    def __init__(self, host: CallHost, account: str, message: SipMessage, peer: str) -> None:
        self.call_id = message.header("call-id")
        self.from_uri = address_uri(message.header("from"))
        self.to_uri = address_uri(message.header("to"))
        self.request_uri = address_uri((message.start_line.split() + ["", ""])[1])
        self.account = account
        self.headers = message.public_headers()
        self.peer = peer
        """Address that the INVITE came from."""
        self.streams: list[MediaStream] = []
        self.recording = siprec.Recording() if siprec.is_recording(message) else None
        """What a recording client says of the call that it records; None: this is no recording session."""
        self.mixed: frozenset[int] = frozenset()
        """Indexes of the m-lines that were refused because all who are heard there have others (SIPREC)."""
        self.agreed_s = 0.0
        """When the streams last changed, by the loop's clock."""
        self.reliable: list[str] = []
        """RSeq of the response that needs a PRACK, and CSeq of its INVITE."""
        self.remote_tag = tag_of(message.header("from"))
        self.local_tag = ""
        """Ours, in the To header of the answers to the INVITE; "" before the first one has gone out."""
        self._host = host
        self._dialog: Dialog | None = None
        self._sockets: dict[_Place, RtpSocket] = {}
        self._keys: dict[tuple[int, srtp.Crypto], srtp.Crypto] = {}
        """By the index of the m-line and the peer's key: ours for it."""
        self._agreed: tuple[NegotiatedStream, ...] = ()
        self._pending: Pending | None = None
        self._leaving: list[Pending] = []
        """Taken by responses that have gone out, and not yet handled by `sent`."""
        self._offered = False
        self._started_sendrecv = False
        self._reason = ""
        self._ended = False

    @property
    def held(self) -> bool:
        return bool(self.streams) and all(stream.held for stream in self.streams)

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def awaits_answer(self) -> bool:
        """An offer of ours has gone out in a 2xx, whose ACK brings the answer."""
        return self._offered or any(pending.streams is None for pending in self._leaving)

    @property
    def family(self) -> Family:
        """Of what we offer."""
        return next((family for _, family in self._sockets), family_of(self.peer))

    def hangup(self, code: int = 0, *, reason: str = "local") -> None:
        """BYE, or a final response when the call is not answered yet: `code`, else 603. Idempotent.

        The handler's `on_end` follows, never from within this method.
        """
        if self._dialog is not None and not self._dialog.over and not self._ended:
            self._reason = self._reason or reason
            self._dialog.finish(code)

    # The rest is for the endpoint and the dialog.

    def attach(self, dialog: Dialog, offer: SessionDescription | None) -> None:
        """Bind sockets for what the INVITE offers. Raises NotAcceptable or PortsExhausted."""
        self._dialog = dialog
        if offer is None:
            if self._host.srtp == "mandatory":  # what the ACK would bring is not shown to us
                raise NotAcceptable("an INVITE without an offer cannot agree on keys")
            family = family_of(self.peer)
            self._sockets[0, family] = self._host.open_socket(family)
            return
        self._agreed = self._negotiate(offer)
        try:
            for stream in self._agreed:
                self._socket(stream)
        except PortsExhausted:
            for socket in self._sockets.values():
                socket.close()  # nobody will hear of this call any more
            raise

    def ask(self) -> None:
        """Ask the peer whether it still has the call; `CallHost.peer_answered` follows, if it is to be reached."""
        if self._dialog is not None and not self._dialog.over and not self._ended:
            self._dialog.ask()

    def asked(self, status: int) -> None:
        """The final answer of the peer, or of a proxy on the way; 0: the question could not be sent."""
        if not self._ended:
            self._host.peer_answered(self, status)

    def forgotten(self) -> None:
        """The peer does not know the call; PJSIP ends it."""
        if not self._ended:
            self._reason = self._reason or "timeout"
            self._host.peer_answered(self, UNKNOWN_CALL)

    def ring(self) -> None:
        """Say 180: the answer will take a while."""
        if self._dialog is not None and not self._dialog.over:
            self._dialog.ring()

    def responded(self, message: SipMessage) -> None:
        """A provisional response or a 2xx to the INVITE, or one within the call, has gone out."""
        if not self.local_tag:
            self.local_tag = tag_of(message.header("to"))
            self._host.dialog_opened(self)
        if number := message.header("rseq"):
            self.reliable = [number, message.header("cseq").split()[0]]

    def answer(self) -> None:
        """Answer 200. A call with an offer has its streams before; one without gets them with the ACK."""
        dialog = self._dialog
        if dialog is None or dialog.over:
            return  # cancelled meanwhile
        if self._agreed:
            self._commit(self._agreed)
            self._host.media_ready(self)
        if not dialog.over:
            dialog.accept()

    def describe(self, offer_text: str, template: SessionDescription) -> SessionDescription:
        """Our SDP for `offer_text`, or our offer when it is empty. `template` has PJSIP's origin line."""
        if not offer_text:
            current = tuple(stream.codec for stream in self.streams)
            codecs = current + tuple(codec for codec in self._host.codecs if codec not in current)
            socket = next(iter(self._sockets.values()))
            address, port = socket.mapped or (self._address(self.family, socket.source), socket.port)
            own = make_offer(codecs, port, address=address, origin=template.origin)
            self._pending = Pending(own, None)
            socket.expect_another(True)
            return own
        offer = SessionDescription.parse(offer_text)
        streams = self._negotiate(offer)
        sockets = {stream.index: self._socket(stream) for stream in streams}
        ports = {index: socket.mapped[1] if socket.mapped else socket.port for index, socket in sockets.items()}
        reports = {
            index: socket.mapped_reports[1]
            for index, socket in sockets.items()
            if socket.mapped_reports and socket.mapped_reports[1] != ports[index] + 1
        }
        keys = {stream.index: self._own_key(stream.index, stream.crypto) for stream in streams if stream.crypto}
        named = {each.index: self._named(each, sockets[each.index]) for each in streams}
        address = named[streams[0].index]
        elsewhere = {index: other for index, other in named.items() if other != address}
        answer = make_answer(
            offer,
            streams,
            ports,
            address=address,
            origin=template.origin,
            keys=keys,
            elsewhere=elsewhere,
            reports=reports,
        )
        self._pending = Pending(answer, streams)
        for socket in sockets.values():  # its audio may be here before the answer has been seen to go out
            socket.expect_another(True)
        return answer

    def check(self, offer_text: str) -> int:
        """The number of audio lines of a new offer. Raises PeerError or PortsExhausted when it cannot be accepted."""
        offer = SessionDescription.parse(offer_text)
        for stream in self._negotiate(offer):
            self._socket(stream)
        return audio_lines(offer)

    def take_pending(self) -> Pending | None:
        """What `describe` has made, when the response with it goes out; the next offer may come before `sent`."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._leaving.append(pending)
        return pending

    def sent(self, pending: Pending | None, body: str) -> None:
        """A 2xx with this SDP has gone out."""
        self._leaving = [each for each in self._leaving if each is not pending]
        if pending is None or not body or self._ended:
            return
        if not same_media(pending.description, SessionDescription.parse(body)):
            # PJSIP has fallen back to a description of its own: audio would go to a port nobody reads.
            log.error("the SDP that was sent is not ours", external_id=self.call_id, message=mask_message(body))
            self._host.mismatch(self)
            self.hangup(reason="failed")
        elif pending.streams is None:
            self._offered = True
        elif pending.streams != self._agreed:
            self._commit(pending.streams)
            self._host.media_changed(self)
        else:
            self._expect_no_other()

    def dropped(self) -> None:
        """The re-INVITE of the pending description was refused."""
        self._pending = None
        self._expect_no_other()

    def _expect_no_other(self) -> None:
        for socket in self._sockets.values():
            socket.expect_another(False)

    def confirmed(self, streams: tuple[NegotiatedStream, ...]) -> None:
        """PJSIP's media is up. When the ACK brought the answer to our own offer, these are its streams."""
        if not self._offered or self._ended:
            return
        self._offered = False
        first = not self.streams
        if not streams:
            self.hangup(reason="failed")
        elif streams != self._agreed:
            self._commit(streams)
            (self._host.media_ready if first else self._host.media_changed)(self)

    def refreshed(self, body: str) -> None:
        """The peer has answered an offer of what is agreed: where it listens may be new, and whether it holds."""
        if not body or self._ended:
            return
        try:
            streams = moved(self._agreed, self._negotiate(SessionDescription.parse(body)))
        except PeerError as error:  # the audio may go on as it was
            log.warning("the answer to a refresh is left out", reason=str(error), external_id=self.call_id)
            return
        if streams and streams != self._agreed:
            self._commit(streams)
            self._host.media_changed(self)

    def described(self, message: SipMessage) -> None:
        """Take over the metadata of an INVITE or UPDATE, if there is any; what is wrong with it changes nothing."""
        if self.recording is None or not (text := siprec.metadata_of(message)):
            return
        try:
            self.recording.update(siprec.parse(text))
        except PeerError as error:
            self._host.metadata_refused(self, error)
            return
        if self.streams:
            self._host.metadata_changed(self)

    def digit(self, digit: str, duration_ms: int) -> None:
        if self.streams:
            self._host.digit(self, digit, duration_ms)

    def disconnected(self, status: int) -> None:
        """The dialog is over; `status` is the SIP status of its end."""
        if self._ended:
            return
        self._ended = True
        reason = self._reason or {200: "hangup", 487: "cancelled", 408: "timeout"}.get(status, "failed")
        for socket in self._sockets.values():
            socket.drain()  # it came before the BYE
        try:
            self._host.ended(self, reason)
        finally:
            for socket in self._sockets.values():
                socket.close()

    def release(self) -> None:
        """Let go of the pjsua2 object; not from within one of its callbacks."""
        self._dialog = None

    def _negotiate(self, offer: SessionDescription) -> tuple[NegotiatedStream, ...]:
        streams = self._host.max_streams if self.recording else 1
        host = self._host
        without = self._mixed_lines(offer)
        agreed = negotiate(offer, host.codecs, streams=streams, use=host.srtp, families=host.families, without=without)
        self.mixed = without - {stream.index for stream in agreed}
        return agreed

    def _mixed_lines(self, offer: SessionDescription) -> frozenset[int]:
        """The m-lines whose speakers all have others of their own, where those are not wanted."""
        if self.recording is None or not self._host.ignore_mixed:
            return frozenset()
        lines = [(index, media) for index, media in enumerate(offer.media) if media.kind == "audio"]
        return frozenset(
            index
            for place, (index, media) in enumerate(lines)
            if self.recording.is_mixed(media.attribute("label") or "", place)
        )

    def _socket(self, stream: NegotiatedStream) -> RtpSocket:
        """The stream's, opened when there is none: it may have moved to the other family."""
        place = stream.index, stream.family
        if place not in self._sockets:
            self._sockets[place] = self._host.open_socket(stream.family)
        return self._sockets[place]

    def _named(self, stream: NegotiatedStream, socket: RtpSocket) -> str:
        if socket.mapped is not None:
            return socket.mapped[0]
        return self._address(stream.family, stream.remote or socket.source)

    def _address(self, family: Family, media: tuple[str, int] | None) -> str:
        """Ours that faces who calls, or the peer's media when that has the other family."""
        faced = self.peer if family_of(self.peer) == family else media[0] if media else ""
        return self._host.local_address(family, faced)

    def _own_key(self, index: int, theirs: srtp.Crypto) -> srtp.Crypto:
        """The one that we gave for theirs: who repeats a key goes on with it."""
        return self._keys.setdefault((index, theirs), theirs.own())

    def _commit(self, streams: tuple[NegotiatedStream, ...]) -> None:
        if not self.streams:
            self._started_sendrecv = any(stream.direction is Direction.SENDRECV for stream in streams)
        self._agreed = streams
        # The next offers may have come already, and their answers be on their way.
        later = (*self._leaving, self._pending)
        ahead = tuple(stream for each in later if each is not None for stream in each.streams or ())
        for place in self._sockets.keys() - {(stream.index, stream.family) for stream in streams + ahead}:
            self._sockets[place].drain()
            self._sockets.pop(place).close()
        for key in self._keys.keys() - {(stream.index, stream.crypto) for stream in streams + ahead}:
            del self._keys[key]
        self.streams[:] = [self._stream(stream) for stream in streams]

    def _stream(self, agreed: NegotiatedStream) -> MediaStream:
        socket = self._sockets[agreed.index, agreed.family]
        silence = self._host.send_silence and agreed.direction.sends
        keys = (agreed.crypto, self._own_key(agreed.index, agreed.crypto)) if agreed.crypto else None
        socket.expect(
            agreed.remote, agreed.codec, agreed.payload_type, silence=silence, keys=keys, control=agreed.control
        )
        # A recorder's stream is sendonly from the start; that is no hold.
        held = agreed.on_hold and (self._started_sendrecv or agreed.direction is Direction.INACTIVE)
        return MediaStream(
            index=agreed.index,
            label=agreed.label,
            codec=agreed.codec,
            payload_type=agreed.payload_type,
            telephone_event=agreed.telephone_event,
            direction=agreed.direction,
            held=held,
            socket=socket,
            event_clock_hz=agreed.event_clock_hz,
        )
