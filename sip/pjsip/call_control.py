"""The calls of an endpoint: their admission and number, and their life from the INVITE on.

An INVITE is checked in PJSIP's callback and answered from the loop right after it. So a CANCEL that came in the same
burst is processed first, and no call is answered from within PJSIP.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from audio import Detector
from audio.codecs.codec import Codec
from audio.rtp.silence_ticker import SilenceTicker
from config import Settings
from config.log.rate_limit import LogRateLimit
from config.network.access_list import AccessList
from config.network.addresses import Family, peer_key, split_address
from sip.admission.admission import Admission
from sip.admission.request_filter import RequestHead
from sip.media.own_addresses import OwnAddresses
from sip.media.ports import RtpPorts
from sip.media.receiver import RtpReceiver
from sip.media.rtp_socket import RtpCounters, RtpSocket
from sip.pjsip import callbacks
from sip.pjsip.accounts import Account
from sip.pjsip.call import SipCall, SipHandler
from sip.pjsip.counters import SipCounters
from sip.pjsip.dialog import Dialog
from sip.pjsip.in_dialog import DialogRequests
from sip.pjsip.peer_checks import PeerChecks
from sip.protocol.called_account import CalledAccount, called_account
from sip.protocol.errors import PeerError, SipError
from sip.protocol.message import SipMessage, address_uri
from sip.protocol.offer_answer import audio_lines
from sip.protocol.offer_check import check as check_body
from sip.protocol.offer_check import judge
from sip.protocol.sdp import Direction, SessionDescription

log = structlog.get_logger("sip")

_SWEEP_S = 1.0
"""How often the media of all calls is checked."""
HOLD_S = 3600.0
"""The silence allowed to a call on hold, unless `sip.media_timeout_s` is longer."""


class CallControl:
    """Accepts calls. It is the `AdmittedCalls` of the admission, and the `CallHost` of each call."""

    def __init__(
        self,
        settings: Settings,
        handler: SipHandler,
        addresses: OwnAddresses,
        access: AccessList,
        detector: Detector | None,
        *,
        unasked: Callable[[str], bool] | None,
        ready: Callable[[], bool],
    ) -> None:
        """`detector`: that of the legs that the handler assigns to sockets; `unasked`, `ready`: see `Admission`."""
        self.accounts: Sequence[CalledAccount] = ()
        """The accounts that are, or will be, registered."""
        sip, self._settings = settings.sip, settings.sip
        self.handler, self._addresses, self._access = handler, addresses, access
        self._loop = asyncio.get_running_loop()
        rtp, hosts = settings.rtp, addresses.hosts
        self.ports = RtpPorts(rtp.port_min, rtp.port_max, host=hosts.get("IP4", ""), host6=hosts.get("IP6", ""))
        self._in_dialog = DialogRequests(lambda call, *digit: self._loop.call_soon(call.on_digit, *digit))
        self.ready, self.check_in_dialog = ready, self._in_dialog.check
        self.admission = Admission(access, sip, self, self._loop.time, unasked=unasked)
        # A random name, from which no address can be learned (RFC 7022 section 4.2).
        self.cname = secrets.token_urlsafe(12) if rtp.rtcp else ""
        """Our name in RTCP; "" if no RTCP is sent."""
        self.families = addresses.families
        self.codecs = tuple(Codec[name] for name in sip.codecs)
        self.send_silence = sip.send_audio == "silence"
        self.srtp = sip.srtp
        self.ignore_mixed = settings.siprec.ignore_mixed
        self.counters = SipCounters()
        self.rtp = RtpCounters()
        self.receiver = RtpReceiver(detector)
        """The reader of RTP, whose `sweep` is called once per media tick."""
        self.ticker = SilenceTicker(self._loop)
        self.peers = PeerChecks(sip.peer_check_s, self.counters)
        self._once = LogRateLimit()
        self._draining = False
        self._sweep: asyncio.TimerHandle | None = None
        # Strong references: pjsua2 hangs a call up when its Python object is collected.
        self._dialogs: set[Dialog] = set()
        self.calls: set[SipCall] = set()
        self.ringing: dict[SipCall, asyncio.TimerHandle] = {}

    @property
    def full(self) -> bool:
        """Whether `sip.max_calls` has been reached."""
        return len(self.calls) >= self._settings.max_calls

    def start(self) -> None:
        """Start the periodic check of all calls' media."""
        self._sweep = self._loop.call_later(_SWEEP_S, self._check_media)

    def refuse_new(self) -> None:
        """Drain: answer with 503 and Retry-After from now on, also to calls that ring."""
        self._draining = True
        for call in tuple(self.ringing):
            self.counters.refused[503] += 1
            call.hangup(503)

    def stop(self) -> None:
        """Hang up all calls; PJSIP still has to send the requests."""
        if self._sweep is not None:
            self._sweep.cancel()
        for call in tuple(self.calls):
            call.hangup()

    def release(self) -> None:
        """Drop every pjsua2 object, before PJSIP ends."""
        for dialog in tuple(self._dialogs):
            self._release(dialog)

    # Reports of PJSIP.

    def on_invite(self, account: Account, prm: Any) -> None:
        self.counters.invites += 1
        dialog = Dialog(account, prm.callId, self._on_over, self._loop.call_soon)
        self._dialogs.add(dialog)
        peer, _ = split_address(prm.rdata.srcAddress)
        try:
            message = SipMessage.parse(prm.rdata.wholeMsg)
            status = self._refusal(peer, message.header("call-id"))
            if not status:
                self._open(account, dialog, message, prm.rdata.srcAddress)
        except SipError as error:
            status = error.status
            self.admission.log_refused(peer, status, str(error))
        except Exception:
            status = 500  # else PJSIP would keep a call without an answer
            callbacks.report("onIncomingCall")
        if status:
            self.counters.refused[status] += 1
            self._loop.call_soon(dialog.finish, status)

    def _open(self, account: Account, dialog: Dialog, message: SipMessage, source: str) -> None:
        peer, _ = split_address(source)
        body = message.part("application/sdp")
        offer = SessionDescription.parse(body) if body.strip() else None
        name = self.account_of(message, peer)
        call = SipCall(self, name, message, peer)
        call.on_metadata(message)
        call.attach(dialog, offer)
        dialog.call = call
        dialog.audio_lines = audio_lines(offer) if offer else 1
        self.calls.add(call)
        self.peers.open(call, message, source, self._loop.time())
        # No ringing for a recording client, which does not wait for a person; nor for an INVITE without an offer that
        # requires reliable responses, since a 180 without an offer would violate RFC 3261 section 13.2.1.
        offers = offer is not None or "100rel" not in message.joined("require")
        rings = self._settings.answer_delay_s > 0 and call.recording is None and offers
        self._loop.call_soon(self._ring if rings else self._answer, call)

    def account_of(self, message: SipMessage, peer: str) -> str:
        """The account of a call: one of `accounts`, or the user whose credentials the caller has sent."""
        here = self._access.accounts_at(peer)
        user = self.admission.user_of(message.header("call-id"), peer) or ""
        if user and not here:
            return user  # independent of the dialled number
        request_uri = (message.start_line.split() + ["", ""])[1]
        to_uri = address_uri(message.header("to"))
        return called_account(self.accounts, request_uri=request_uri, to_uri=to_uri, here=here) or user

    def _ring(self, call: SipCall) -> None:
        if call.ended:
            return
        self.ringing[call] = self._loop.call_later(self._settings.answer_delay_s, self._answer, call)
        with contextlib.suppress(SipError):  # then the answer will fail with the reason
            call.ring()

    def _answer(self, call: SipCall) -> None:
        self.ringing.pop(call, None)
        try:
            call.answer()
        except SipError as error:  # the offer passed our check and not PJSIP's
            self.admission.log_refused(call.peer, 488, str(error))
            call.hangup(488, reason="failed")
        except Exception:
            # An error of the handler or PJSIP must end only this call.
            log.exception("a call could not be answered", external_id=call.call_id)
            call.hangup(500, reason="failed")

    def _refusal(self, peer: str, call_id: str) -> int:
        if not self._access.allows(peer) and self.admission.user_of(call_id, peer) is None:
            self.admission.log_refused(peer, 403)
            return 403
        return self.capacity()

    def capacity(self) -> int:
        if self._draining:
            return 503
        if self.full:
            return 486
        return self.handler.can_accept()

    def check_body(self, request: RequestHead, packet: bytes) -> str | None:
        """Check the body of a request that begins a call or belongs to one: PJSIP answers any other with 481."""
        if not request.to_tag:
            return check_body(packet, self.codecs, use=self.srtp, families=self.families)
        call = self._in_dialog.find(request, packet.decode(errors="replace"))
        if call is None:
            return None
        if request.method != "ACK":
            return check_body(packet, self.codecs, use=self.srtp, families=self.families)
        if not call.awaits_answer:
            return None  # its body has no meaning for us
        try:
            answer = judge(packet, call.match_answer)
        except PeerError:
            # PJSIP would accept it, and an ACK cannot be answered with a status.
            self._loop.call_soon(partial(call.hangup, reason="failed"))
            raise
        self._loop.call_soon(call.on_answer, None if answer is None else answer.streams)
        return "" if answer is None else answer.shown

    def on_connection(self, request: RequestHead, cseq: int, peer: tuple[str, int], text: str) -> None:
        with contextlib.suppress(PeerError):
            if (call := self._in_dialog.find(request, text)) is not None:
                self.peers.on_request(call, request.method, cseq, peer)

    def on_rejected(self, status: int) -> None:
        self.counters.invites += 1
        self.counters.refused[status] += 1

    def _on_over(self, dialog: Dialog) -> None:
        # Release it later, because the C++ object must not be destroyed inside its own callback.
        self._loop.call_soon(self._release, dialog)

    def _release(self, dialog: Dialog) -> None:
        self._dialogs.discard(dialog)
        if dialog.call is not None:
            dialog.call.release()
            dialog.call = None

    def _check_media(self) -> None:
        self._sweep = self._loop.call_later(_SWEEP_S, self._check_media)
        limit_s, now = self._settings.media_timeout_s, self._loop.time()
        keep_s = self._settings.keepalive_s if self._addresses.public("IP4") else 0
        for call in tuple(self.calls):
            for stream in call.streams:
                stream.socket.send_report(now)
                if keep_s and stream.direction is not Direction.INACTIVE:
                    stream.socket.keep(now, keep_s)
            # A holding peer sends nothing, and needs a moment to resume.
            allowed_s = max(limit_s, HOLD_S) if call.held else limit_s
            received_s = [stream.socket.last_packet_s for stream in call.streams]
            if limit_s and received_s and now - max(call.agreed_s, *received_s) > allowed_s:
                call.hangup(reason="media_timeout")
        self.peers.sweep(now)

    # CallHost

    def open_socket(self, family: Family) -> RtpSocket:
        return RtpSocket(
            self.ports,
            self.receiver,
            self.rtp,
            self.ticker,
            self._loop,
            family=family,
            cname=self.cname,
            spare=self._addresses.nat.pop_spare() if family == "IP4" else None,
        )

    def local_address(self, family: Family, peer: str) -> str:
        """Our address for SDP to `peer`, which may be unknown."""
        return self._addresses.facing(family, peer)

    def on_dialog(self, call: SipCall) -> None:
        self._in_dialog.open(call)

    def on_peer_answer(self, call: SipCall, status: int) -> None:
        self.peers.on_answer(call, status, self._loop.time())

    def on_media_ready(self, call: SipCall) -> None:
        self.counters.answered += 1
        self.counters.recordings += call.recording is not None
        call.agreed_s = self._loop.time()
        self.handler.on_call(call)

    def on_media_changed(self, call: SipCall) -> None:
        call.agreed_s = self._loop.time()
        self.handler.on_media(call)

    def on_metadata_refused(self, call: SipCall, error: PeerError) -> None:
        self.counters.metadata_errors += 1
        if (held_back := self._once.due(peer_key(call.peer), self._loop.time())) is not None:
            about = {"peer": call.peer, "external_id": call.call_id, "held_back": held_back}
            log.warning("recording metadata is left out", reason=str(error), **about)

    def on_ended(self, call: SipCall, reason: str) -> None:
        self.calls.discard(call)
        self._in_dialog.close(call)
        self.peers.close(call)
        if (answer := self.ringing.pop(call, None)) is not None:
            answer.cancel()
        self.counters.failed += reason in ("failed", "timeout")
        self.counters.cancelled += reason == "cancelled"
        self.counters.media_timeouts += reason == "media_timeout"
        if call.streams:
            self.handler.on_end(call, reason)
