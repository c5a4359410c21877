"""One inbound call: its INVITE, the agreed session description, and the changes by re-INVITEs.

`sip.pjsip.dialog` is its counterpart in PJSIP, and `sip.media.call_media` has its sockets. Each SDP of PJSIP's own is
replaced by ours at once. A re-INVITE does not take effect then: it is committed when the 200 with that description
has been sent (`sip.protocol.negotiation`), so a refused re-INVITE changes nothing.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from audio.codecs.codec import Codec
from config.network.addresses import Family
from sip.media.call_media import CallMedia, MediaHost, MediaStream
from sip.pjsip.counters import SipCounters
from sip.protocol import siprec
from sip.protocol.errors import NotAcceptable, PeerError, PortsExhausted
from sip.protocol.liveness import UNKNOWN_CALL
from sip.protocol.message import SipMessage, address_uri, tag_of
from sip.protocol.negotiation import DescriptionEvent, DescriptionState, Negotiation, OwnDescription, Streams
from sip.protocol.offer_answer import (
    NegotiatedStream,
    SrtpUse,
    accept_answer,
    audio_lines,
    match_answer,
    moved,
    negotiate,
    same_media,
)
from sip.protocol.sdp import SessionDescription
from sip.protocol.trace import mask_message

log = structlog.get_logger("sip")

MAX_STREAMS = 8
"""The most audio streams of one recording session; every other call has one."""
_REASONS = {200: "hangup", 487: "cancelled", 408: "timeout"}
"""The SIP status of a call's end → its reason; any other status is "failed"."""


class CallDialog(Protocol):
    """A call's interface to its dialog; `sip.pjsip.dialog.Dialog` is the one in PJSIP."""

    over: bool
    """Whether PJSIP has ended the dialog."""

    def ring(self) -> None:
        """Send 180."""

    def accept(self) -> None:
        """Send 200."""

    def finish(self, code: int = 0) -> None:
        """Hang up, or refuse with `code`."""

    def send_options(self) -> None: ...


class SipHandler(Protocol):
    """Who takes the calls. All methods are called on the loop's thread and must not block."""

    def on_call(self, call: SipCall) -> None:
        """An INVITE is about to be answered: `call.streams` is negotiated; set each `socket.leg` now."""

    def on_media(self, call: SipCall) -> None:
        """A re-INVITE changed codec, address or direction: `call.streams` and `call.held` are new."""

    def on_metadata(self, call: SipCall) -> None:
        """A recording client says something new: `call.recording`."""

    def on_dtmf(self, call: SipCall, digit: str, duration_ms: int) -> None:
        """A digit by SIP INFO; those in RTP (RFC 4733) are in the stream."""

    def on_end(self, call: SipCall, reason: str) -> None:
        """hangup | cancelled | local | failed | timeout | media_timeout. The sockets close when this returns.

        `timeout`: the peer did not acknowledge the answer, did not refresh the session, or was silent and did not say
        that it still has the call.
        """

    def can_accept(self) -> int:
        """0, or the SIP status to refuse a call with."""


class CallHost(MediaHost, Protocol):
    """The part of the endpoint that a call uses."""

    codecs: tuple[Codec, ...]
    srtp: SrtpUse
    families: tuple[Family, ...]
    ignore_mixed: bool
    """Refuse the mixed stream of a recording session."""
    handler: SipHandler
    counters: SipCounters

    def on_dialog(self, call: SipCall) -> None: ...
    def on_peer_answer(self, call: SipCall, status: int) -> None: ...
    def on_media_ready(self, call: SipCall) -> None: ...
    def on_media_changed(self, call: SipCall) -> None: ...
    def on_metadata_refused(self, call: SipCall, error: PeerError) -> None: ...
    def on_ended(self, call: SipCall, reason: str) -> None: ...


class SipCall:
    """A call, as the handler uses it."""

    def __init__(self, host: CallHost, account: str, message: SipMessage, peer: str) -> None:
        self.call_id = message.header("call-id")
        self.from_uri = address_uri(message.header("from"))
        self.to_uri = address_uri(message.header("to"))
        self.request_uri = address_uri((message.start_line.split() + ["", ""])[1])
        self.account = account
        self.headers = message.public_headers()
        self.peer = peer
        """The source address of the INVITE."""
        self.recording = siprec.Recording() if siprec.is_recording(message) else None
        """The metadata of the recorded call; None if this is no recording session."""
        self.mixed: frozenset[int] = frozenset()
        """The indexes of the m-lines that were refused because all their speakers have separate streams (SIPREC)."""
        self.agreed_s = 0.0
        """When the streams last changed, by the loop's clock."""
        self.reliable: list[str] = []
        """The RSeq of the response that needs a PRACK, and the CSeq of its INVITE."""
        self.remote_tag = tag_of(message.header("from"))
        self.local_tag = ""
        """Our tag in the To header of responses to the INVITE; "" before the first one has been sent."""
        self._host = host
        self._dialog: CallDialog | None = None
        self._media = CallMedia(host, peer)
        self._negotiation = Negotiation()
        self._reason = ""
        self.ended = False

    @property
    def streams(self) -> list[MediaStream]:
        return self._media.streams

    @property
    def held(self) -> bool:
        return bool(self.streams) and all(stream.held for stream in self.streams)

    @property
    def awaits_answer(self) -> bool:
        """Whether an offer of ours has been sent in a 2xx, whose ACK contains the answer."""
        return self._negotiation.offered is not None

    def hangup(self, code: int = 0, *, reason: str = "local") -> None:
        """Send BYE, or before the answer a final response (`code`, else 603). Idempotent.

        The handler's `on_end` follows, never from within this method.
        """
        if self._dialog is not None and not self._dialog.over and not self.ended:
            self._reason = self._reason or reason
            self._dialog.finish(code)

    # Requests of the endpoint.

    def attach(self, dialog: CallDialog, offer: SessionDescription | None) -> None:
        """Bind sockets for the streams offered by the INVITE. Raises NotAcceptable or PortsExhausted."""
        self._dialog = dialog
        if offer is None:
            self._media.reserve_for_offer()
            return
        streams = self._negotiation.agreed = self._negotiate(offer)
        try:
            self._media.reserve(streams)
        except PortsExhausted:
            self._media.close()  # this call will not be reported any further
            raise

    def ring(self) -> None:
        """Send 180, because the answer will take a while."""
        if self._dialog is not None and not self._dialog.over:
            self._dialog.ring()

    def answer(self) -> None:
        """Send 200. A call with an offer has its streams before that; one without gets them with the ACK."""
        dialog = self._dialog
        if dialog is None or dialog.over:
            return  # the call was cancelled meanwhile
        if self._negotiation.agreed:
            self._commit(self._negotiation.agreed)
            self._host.on_media_ready(self)
        if not dialog.over:
            dialog.accept()

    def send_options(self) -> None:
        """Ask the peer whether it still has the call; `CallHost.on_peer_answer` follows, if it can be reached."""
        if self._dialog is not None and not self._dialog.over and not self.ended:
            self._dialog.send_options()

    def release(self) -> None:
        """Drop the pjsua2 object; this must not be called within one of its callbacks."""
        self._dialog = None

    # Reports of the dialog. Methods with a result are called within PJSIP's callback, the others after it.

    def describe(self, offer_text: str, template: SessionDescription) -> SessionDescription:
        """Our SDP for `offer_text`, or our offer when it is empty. `template` has PJSIP's origin line."""
        host, negotiation = self._host, self._negotiation
        if not offer_text:
            if negotiation.last is not None:
                own = self._media.next_offer(negotiation.last, negotiation.agreed, host.codecs, template)
            else:
                own = self._media.first_offer(host.codecs, template, encrypted=host.srtp == "mandatory")
            negotiation.make(own)
            return own
        offer = SessionDescription.parse(offer_text)
        streams = self._negotiate(offer)
        own = self._media.answer(offer, streams, template)
        negotiation.make(own, streams)
        return own

    def check(self, offer_text: str) -> int:
        """The number of audio lines of a new offer. Raises PeerError or PortsExhausted when it cannot be accepted."""
        offer = SessionDescription.parse(offer_text)
        self._media.reserve(self._negotiate(offer))
        return audio_lines(offer)

    def on_response(self, message: SipMessage) -> None:
        """Handle a sent provisional response or 2xx, to the INVITE or within the call."""
        if not self.local_tag:
            self.local_tag = tag_of(message.header("to"))
            self._host.on_dialog(self)
        if number := message.header("rseq"):
            self.reliable = [number, message.header("cseq").split()[0]]

    def on_success(self) -> OwnDescription | None:
        """The description of ours in a 2xx that is being sent; `on_sent` follows, maybe after the next offer."""
        return self._negotiation.respond()

    def on_sent(self, own: OwnDescription | None, body: str) -> None:
        """Commit the description of a 2xx that was sent with the SDP `body`."""
        if own is None:
            return
        if not body or self.ended:
            self._negotiation.move(own, DescriptionEvent.NOT_SENT)
        elif not same_media(own.session, SessionDescription.parse(body)):
            self._negotiation.move(own, DescriptionEvent.NOT_SENT)
            # PJSIP has fallen back to its own description: audio would go to a port that is not read.
            log.error("the SDP that was sent is not ours", external_id=self.call_id, message=mask_message(body))
            self._host.counters.sdp_mismatches += 1
            self.hangup(reason="failed")
        elif self._negotiation.move(own, DescriptionEvent.SENT) is DescriptionState.OFFER_OPEN:
            return  # the answer is still to come
        elif own.streams != self._negotiation.agreed:
            self._commit(own.streams)
            self._host.on_media_changed(self)
        else:
            self._media.expect_no_other()

    def on_refused(self) -> None:
        """Drop the description made for a re-INVITE that has been refused."""
        self._negotiation.refuse()
        self._media.expect_no_other()

    def match_answer(self, answer: SessionDescription) -> list[NegotiatedStream | NotAcceptable]:
        """The stream, or the reason why there is none, of each line in an answer to our offer. Raises SdpError."""
        offer = self._negotiation.offered
        assert offer is not None, "none is awaited"
        return match_answer(offer, answer, self._host.codecs)

    def on_answer(self, streams: Streams | None) -> None:
        """The ACK has brought the answer to our own offer; None: it had none, and what was agreed stays."""
        if self.ended or (offer := self._negotiation.close_offers()) is None:
            return
        first = not self.streams
        if streams is not None:
            self._negotiation.last = offer
            self._media.keep_keys(offer, streams)
        if streams is None and first:
            self.hangup(reason="failed")
        elif streams is None or streams == self._negotiation.agreed:
            self._media.expect_no_other()
        else:
            self._commit(streams)
            (self._host.on_media_ready if first else self._host.on_media_changed)(self)

    def on_refresh_answer(self, body: str) -> None:
        """The peer has answered an offer of what is agreed: where it listens may be new, and whether it holds."""
        if not body or self.ended:
            return
        agreed, last = self._negotiation.agreed, self._negotiation.last
        assert last is not None, "it has been agreed"
        try:
            streams = moved(agreed, accept_answer(last, SessionDescription.parse(body), self._host.codecs))
        except PeerError as error:  # the audio continues unchanged
            log.warning("the answer to a refresh is left out", reason=str(error), external_id=self.call_id)
            return
        if streams and streams != agreed:
            self._commit(streams)
            self._host.on_media_changed(self)

    def on_metadata(self, message: SipMessage) -> None:
        """Apply the metadata of an INVITE or UPDATE, if any; invalid metadata changes nothing."""
        if self.recording is None or not (text := siprec.metadata_of(message)):
            return
        try:
            self.recording.update(siprec.parse(text))
        except PeerError as error:
            self._host.on_metadata_refused(self, error)
            return
        if self.streams:
            self._host.handler.on_metadata(self)

    def on_digit(self, digit: str, duration_ms: int) -> None:
        if self.streams:
            self._host.handler.on_dtmf(self, digit, duration_ms)

    def on_options_answer(self, status: int) -> None:
        """The final answer of the peer, or of a proxy on the way; 0: the OPTIONS could not be sent."""
        if not self.ended:
            self._host.on_peer_answer(self, status)

    def on_unknown_call(self) -> None:
        """The peer does not know the call; PJSIP ends it."""
        if not self.ended:
            self._reason = self._reason or "timeout"
            self._host.on_peer_answer(self, UNKNOWN_CALL)

    def on_disconnected(self, status: int) -> None:
        """The dialog is over; `status` is the SIP status of its end."""
        if self.ended:
            return
        self.ended = True
        self._media.drain()
        try:
            self._host.on_ended(self, self._reason or _REASONS.get(status, "failed"))
        finally:
            self._media.close()

    def _negotiate(self, offer: SessionDescription) -> Streams:
        host = self._host
        streams = MAX_STREAMS if self.recording else 1
        without = self._mixed_lines(offer)
        agreed = negotiate(offer, host.codecs, streams=streams, use=host.srtp, families=host.families, without=without)
        self.mixed = without - {stream.index for stream in agreed}
        return agreed

    def _mixed_lines(self, offer: SessionDescription) -> frozenset[int]:
        """The m-lines to be refused as mixed, because all their speakers have separate ones."""
        if self.recording is None or not self._host.ignore_mixed:
            return frozenset()
        lines = [(index, media) for index, media in enumerate(offer.media) if media.kind == "audio"]
        return frozenset(
            index
            for place, (index, media) in enumerate(lines)
            if self.recording.is_mixed(media.attribute("label") or "", place)
        )

    def _commit(self, streams: Streams) -> None:
        self._negotiation.agreed = streams
        self._media.commit(streams, self._negotiation.ahead)
