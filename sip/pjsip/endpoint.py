"""The worker's SIP side: who may call, how many, and what becomes of an INVITE.

An INVITE is judged in PJSIP's callback and answered from the loop right after it, so a CANCEL that came in the same
burst is seen first and no call is answered from within PJSIP.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from audio import Detector
from audio.codecs.codec import Codec
from config import Settings
from config.addresses import ANYWHERE, LOCALHOST, SOCKETS, Family, bracketed, canonical, family_of, peer_key
from config.settings import Sip
from sip.access import LOOPBACK, AccessList, OncePer, split_address
from sip.admission import Admission
from sip.errors import PeerError, SipError
from sip.handler import SipCounters, SipHandler
from sip.media.nat import Nat
from sip.media.ports import RtpPorts
from sip.media.receiver import RtpReceiver
from sip.media.rtp_socket import RtpCounters, RtpSocket
from sip.media.silence import SilenceTicker
from sip.pjsip import callbacks
from sip.pjsip.accounts import Account, RegisteredAccount, Registration, account_config
from sip.pjsip.call import SipCall
from sip.pjsip.dialog import Dialog
from sip.pjsip.peer_checks import PeerChecks
from sip.pjsip.stack import Stack, TlsFiles
from sip.protocol.digest import Challenger
from sip.protocol.in_dialog import DialogRequests
from sip.protocol.message import SipMessage
from sip.protocol.offer_answer import audio_lines
from sip.protocol.offer_check import check as check_body
from sip.protocol.sdp import Direction, SessionDescription
from sip.request_filter import RequestHead

log = structlog.get_logger("sip")

_SWEEP_S = 1.0
HOLD_S = 3600.0
"""A call on hold may be silent for so long, or for `sip.media_timeout_s` when that is longer."""
_FAREWELL_S = 2.0
_SOMEWHERE: dict[Family, str] = {"IP4": "192.0.2.1", "IP6": "2001:db8::1"}
"""Nobody's (RFC 5737, RFC 3849): the way there is the way to most."""


class SipEndpoint:
    """Answers calls. One per process, because PJSIP is."""

    def __init__(
        self,
        settings: Settings,
        handler: SipHandler,
        detector: Detector | None = None,
        *,
        trusted: tuple[str, ...] = LOOPBACK,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """Raises ConfigError for a bad `sip.allow` or registrar.

        `detector`: of the legs that the handler gives to sockets; `trusted`: networks that may always call; `ready()`:
        whether calls should be sent here. While it is False OPTIONS is answered 503, as when calls are refused.
        """
        self._settings = settings.sip
        self.max_streams = settings.siprec.max_streams
        """Of one recording session; every other call has one stream."""
        self.ignore_mixed = settings.siprec.ignore_mixed
        self._handler = handler
        self._access = AccessList(settings.sip.allow, trusted=trusted)
        hosts: dict[Family, str] = {"IP4": settings.sip.host, "IP6": settings.sip.host6}
        self._hosts = {family: canonical(host) for family, host in hosts.items() if host}
        public: dict[Family, str] = {"IP4": settings.sip.public_address, "IP6": settings.sip.public_address6}
        self._public = {family: canonical(address) if address else "" for family, address in public.items()}
        self.nat = Nat(settings.sip.stun if "IP4" in self._hosts else "", host=self._hosts.get("IP4", ""))
        """What a STUN server says of us."""
        self.families: tuple[Family, ...] = tuple(self._hosts)
        self._ports = RtpPorts(
            settings.rtp.port_min,
            settings.rtp.port_max,
            host=self._hosts.get("IP4", ""),
            host6=self._hosts.get("IP6", ""),
        )
        self._in_dialog = DialogRequests(lambda call, *digit: self._loop.call_soon(call.digit, *digit))
        self.admission = Admission(
            self._access,
            invites_per_s=settings.sip.max_invites_per_s,
            max_tcp=settings.sip.max_tcp,
            refusal=self._capacity,
            in_dialog=self._in_dialog.check,
            body=self._check_body,
            on_refused=self._on_rejected,
            clock=asyncio.get_running_loop().time,
            challenger=_challenger(settings.sip),
            unasked=AccessList((), trusted=trusted).allows if settings.sip.challenge == "everybody" else None,
            ready=ready,
        )
        # Ours and nobody's address: a name that nothing can be learned from (RFC 7022 section 4.2).
        self._cname = secrets.token_urlsafe(12) if settings.rtp.rtcp else ""
        self._draining = False
        self._traced = settings.log.sip_trace
        self._stack: Stack | None = None
        self._local = Account("", self._on_invite)
        self._accounts = [
            RegisteredAccount(account, self._on_invite, self._on_registration, self.families, settings.sip.keepalive_s)
            for account in settings.sip.accounts
        ]
        self._tasks: list[asyncio.Task[None]] = []
        # Strong references: pjsua2 hangs a call up when its Python object is collected.
        self._dialogs: set[Dialog] = set()
        self._calls: set[SipCall] = set()
        self._ringing: dict[SipCall, asyncio.TimerHandle] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.codecs = tuple(Codec[name] for name in settings.sip.codecs)
        self.send_silence = settings.sip.send_audio == "silence"
        self.srtp = settings.sip.srtp
        self.counters = SipCounters()
        self._peers = PeerChecks(settings.sip.peer_check_s, self.counters)
        self._once = OncePer()
        self.rtp = RtpCounters()
        self.receiver = RtpReceiver(detector)
        """Reads the RTP when its `sweep` is called: once per media tick."""
        self.port = 0
        """The SIP port in use; differs from the configured one only when that is 0."""
        self.tls_port = 0
        """0: nobody can call over TLS."""
        self._tls: dict[Family, int] = {}
        """The transport of each family."""

    @property
    def calls(self) -> int:
        return len(self._calls)

    @property
    def full(self) -> bool:
        """No further call is taken: there are `sip.max_calls` of them."""
        return len(self._calls) >= self._settings.max_calls

    @property
    def registrations(self) -> list[Registration]:
        return [account.registration for account in self._accounts]

    @property
    def rtp_sockets(self) -> int:
        return self._ports.in_use - self.nat.held

    @property
    def dialogs(self) -> int:
        """Calls and refusals that PJSIP has not let go of."""
        return self._stack.dialogs if self._stack else 0

    @property
    def callback_errors(self) -> int:
        """Exceptions of ours in PJSIP's callbacks, since the process began; each is a bug."""
        return callbacks.callback_errors

    @property
    def transactions(self) -> int:
        return self._stack.transactions if self._stack else 0

    async def start(self) -> None:
        """Listen and register. Raises SipError when an address is taken."""
        self._loop = asyncio.get_running_loop()
        await self.nat.find(self._settings.port)
        self._ticker = SilenceTicker(self._loop)
        settings = self._settings
        self._stack = Stack(
            max_calls=settings.max_calls,
            log_level=settings.log_level,
            traced=self._traced,
            on_rejected=self._on_rejected,
            on_lost=self._on_lost,
            admission=self.admission,
            families=self.families,
        )
        try:
            self.port = settings.port
            for family, host in self._hosts.items():
                for kind in settings.transports:
                    _, self.port = self._stack.listen(kind, host, self.port, public_address=self._outside(family))
            self._listen_tls(self._stack)
            self._stack.start()
            family = self.families[0]
            own = bracketed(self.local_address(family, LOCALHOST[family]))
            self._local.open(account_config(f"sip:mediaworker@{own}"), default=True)
        except SipError:
            self._stack.destroy()
            raise
        self._tasks = [asyncio.create_task(account.follow(self._access)) for account in self._accounts]
        self._tasks.append(asyncio.create_task(self.nat.follow(self._ports, reports=bool(self._cname))))
        self._sweep = self._loop.call_later(_SWEEP_S, self._look_for_silence)
        log.info(
            "SIP is listening",
            addresses=list(self._hosts.values()),
            port=self.port,
            transports=settings.transports,
            tls_port=self.tls_port or None,
        )

    def _listen_tls(self, stack: Stack) -> None:
        settings = self._settings
        registrars = any(registrar.transport == "tls" for each in self._accounts for registrar in each.registrars)
        if not settings.tls_cert and not registrars:
            return
        files = TlsFiles(
            cert=settings.tls_cert,
            key=settings.tls_key,
            ca=settings.tls_ca,
            verify=settings.tls_verify,
            clients=settings.tls_clients == "verified",
        )
        port = settings.tls_port if settings.tls_cert else 0
        for family, host in self._hosts.items():
            self._tls[family], bound = stack.listen(
                "tls", host, port, public_address=self._outside(family), files=files
            )
            port = self.tls_port = bound if settings.tls_cert else 0
        if registrars and "IP4" not in self._hosts:
            # PJSIP asks for a port of IPv4 before it looks at the address beside a registrar's name. Nobody gets in.
            stack.listen("tls", LOCALHOST["IP4"], 0, files=replace(files, cert="", key=""))

    def renew_certificate(self) -> None:
        """Read the files of `sip.tls_cert` and `sip.tls_key` again; connections that are open go on."""
        if self._stack is None or not self.tls_port:
            return
        for family, transport in self._tls.items():
            try:
                self._stack.renew(transport, self._hosts[family])
            except SipError as error:
                said = "nobody can call over TLS at this address until the worker is started again"
                log.error(said, address=self._hosts[family], problem=str(error))

    async def stop(self) -> None:
        """Hang up what is left, unregister, and wait for the answers; at most four seconds."""
        if self._stack is None:
            return
        self.refuse_new()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._sweep is not None:
            self._sweep.cancel()
        for call in tuple(self._calls):
            call.hangup()
        await self._stack.settle(_FAREWELL_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await asyncio.gather(*(account.left.wait() for account in self._accounts if account.unregister()))
        for account in (self._local, *self._accounts):
            account.close()
        for dialog in tuple(self._dialogs):
            self._release(dialog)
        self._stack.destroy()
        self._stack = None

    def refuse_new(self) -> None:
        """Draining: 503 from now on, with Retry-After, for calls that ring as well."""
        self._draining = True
        for call in tuple(self._ringing):
            self.counters.refused[503] += 1
            call.hangup(503)

    def trace(self, on: bool) -> None:
        """Log every SIP message from now on, or no longer."""
        self._traced = on
        if self._stack is not None:
            self._stack.trace(on)

    def allow(self, networks: tuple[str, ...]) -> None:
        """Who may call from now on (`sip.allow`), beside loopback and the registrars. Raises ConfigError."""
        self._access.replace(networks)

    def know(self, settings: Sip) -> None:
        """Whose credentials are good from now on (`sip.users`); challenges of before are stale."""
        self.admission.challenger = _challenger(settings)

    # What accounts and calls report.

    def _on_invite(self, account: Account, prm: Any) -> None:
        self.counters.invites += 1
        dialog = Dialog(account, prm.callId, self._forget, self._loop.call_soon)
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
            status = 500  # else PJSIP would keep a call that nobody answers
            callbacks.report("onIncomingCall")
        if status:
            self.counters.refused[status] += 1
            self._loop.call_soon(dialog.finish, status)

    def _open(self, account: Account, dialog: Dialog, message: SipMessage, source: str) -> None:
        peer, _ = split_address(source)
        body = message.part("application/sdp")
        offer = SessionDescription.parse(body) if body.strip() else None
        name = (
            account.name
            or self._access.account_at(peer)
            or self.admission.user_of(message.header("call-id"), peer)
            or ""
        )
        call = SipCall(self, name, message, peer)
        call.described(message)
        call.attach(dialog, offer)
        dialog.call = call
        dialog.audio_lines = audio_lines(offer) if offer else 1
        self._calls.add(call)
        self._peers.opened(call, message, source, self._loop.time())
        # A recording client waits for nobody; and a reliable 180 without an offer would be no answer to an INVITE
        # without one (RFC 3261 section 13.2.1).
        offers = offer is not None or "100rel" not in message.joined("require")
        rings = self._settings.answer_delay_s > 0 and call.recording is None and offers
        self._loop.call_soon(self._ring if rings else self._answer, call)

    def _ring(self, call: SipCall) -> None:
        if call.ended:
            return
        self._ringing[call] = self._loop.call_later(self._settings.answer_delay_s, self._answer, call)
        with contextlib.suppress(SipError):  # then the answer will say what is wrong
            call.ring()

    def _answer(self, call: SipCall) -> None:
        self._ringing.pop(call, None)
        try:
            call.answer()
        except SipError as error:  # the offer passed our check and not PJSIP's
            self.admission.log_refused(call.peer, 488, str(error))
            call.hangup(488, reason="failed")
        except Exception:
            # The handler's error or PJSIP's: it must end this call and no other.
            log.exception("a call could not be answered", external_id=call.call_id)
            call.hangup(500, reason="failed")

    def _refusal(self, peer: str, call_id: str) -> int:
        if not self._access.allows(peer) and self.admission.user_of(call_id, peer) is None:
            self.admission.log_refused(peer, 403)
            return 403
        return self._capacity()

    def _capacity(self) -> int:
        if self._draining:
            return 503
        if self.full:
            return 486
        return self._handler.can_accept()

    def _check_body(self, request: RequestHead, packet: bytes) -> tuple[slice, ...]:
        """Of what begins a call, or belongs to one: to anything else PJSIP says 481."""
        if not request.to_tag:
            return check_body(packet, self.codecs, use=self.srtp, families=self.families)
        call = self._in_dialog.find(request, packet.decode(errors="replace"))
        if call is None:
            return ()
        if request.method != "ACK":
            return check_body(packet, self.codecs, use=self.srtp, families=self.families)
        if not call.awaits_answer:
            return ()  # what it has for a body is nothing to us
        try:
            return check_body(packet, self.codecs, use="off", families=(call.family,))
        except PeerError:
            # PJSIP is less particular, and nobody can be told by a status.
            self._loop.call_soon(partial(call.hangup, reason="failed"))
            raise

    def _on_rejected(self, status: int) -> None:
        self.counters.invites += 1
        self.counters.refused[status] += 1

    def _on_lost(self, address: str, port: int) -> None:
        self._peers.connection_lost(address, port)
        for account in self._accounts:
            account.lost(address, port)

    def _on_registration(self, registration: Registration) -> None:
        if registration.state == "registered":
            self.counters.registrations_ok += 1
        elif registration.state == "failed":
            self.counters.registrations_failed += 1

    def _forget(self, dialog: Dialog) -> None:
        # Later: the C++ object must not die inside its own callback.
        self._loop.call_soon(self._release, dialog)

    def _release(self, dialog: Dialog) -> None:
        self._dialogs.discard(dialog)
        if dialog.call is not None:
            dialog.call.release()
            dialog.call = None

    def _look_for_silence(self) -> None:
        self._sweep = self._loop.call_later(_SWEEP_S, self._look_for_silence)
        limit_s, now = self._settings.media_timeout_s, self._loop.time()
        keep_s = self._settings.keepalive_s if self._outside("IP4") else 0
        for call in tuple(self._calls):
            for stream in call.streams:
                stream.socket.report(now)
                if keep_s and stream.direction is not Direction.INACTIVE:
                    stream.socket.keep(now, keep_s)
            # Who holds sends nothing, and needs a moment to begin again.
            allowed_s = max(limit_s, HOLD_S) if call.held else limit_s
            heard_s = [stream.socket.last_packet_s for stream in call.streams]
            if limit_s and heard_s and now - max(call.agreed_s, *heard_s) > allowed_s:
                call.hangup(reason="media_timeout")
        self._peers.sweep(now)

    # CallHost

    def open_socket(self, family: Family) -> RtpSocket:
        return RtpSocket(
            self._ports,
            self.receiver,
            self.rtp,
            self._ticker,
            self._loop,
            family=family,
            cname=self._cname,
            spare=self.nat.take() if family == "IP4" else None,
        )

    def local_address(self, family: Family, peer: str) -> str:
        """The address to name in SDP: the public one, the one listened on, or the one that faces `peer`, if known."""
        if outside := self._outside(family):
            return outside
        host = self._hosts[family]
        return host if host != ANYWHERE[family] else facing(peer or _SOMEWHERE[family])

    def _outside(self, family: Family) -> str:
        """The public address: the one that is configured, or what the STUN server says; "": there is no NAT."""
        return self._public.get(family, "") or (self.nat.address if family == "IP4" else "")

    def dialog_opened(self, call: SipCall) -> None:
        self._in_dialog.opened(call)

    def peer_answered(self, call: SipCall, status: int) -> None:
        self._peers.answered(call, status, self._loop.time())

    def media_ready(self, call: SipCall) -> None:
        self.counters.answered += 1
        self.counters.recordings += call.recording is not None
        call.agreed_s = self._loop.time()
        self._handler.on_call(call)

    def media_changed(self, call: SipCall) -> None:
        call.agreed_s = self._loop.time()
        self._handler.on_media(call)

    def metadata_changed(self, call: SipCall) -> None:
        self._handler.on_metadata(call)

    def metadata_refused(self, call: SipCall, error: PeerError) -> None:
        self.counters.metadata_errors += 1
        if (held_back := self._once.due(peer_key(call.peer), self._loop.time())) is not None:
            about = {"peer": call.peer, "external_id": call.call_id, "held_back": held_back}
            log.warning("recording metadata is left out", reason=str(error), **about)

    def digit(self, call: SipCall, digit: str, duration_ms: int) -> None:
        self._handler.on_dtmf(call, digit, duration_ms)

    def mismatch(self, call: SipCall) -> None:
        self.counters.sdp_mismatches += 1

    def ended(self, call: SipCall, reason: str) -> None:
        self._calls.discard(call)
        self._in_dialog.closed(call)
        self._peers.closed(call)
        if (answer := self._ringing.pop(call, None)) is not None:
            answer.cancel()
        self.counters.failed += reason in ("failed", "timeout")
        self.counters.cancelled += reason == "cancelled"
        self.counters.media_timeouts += reason == "media_timeout"
        if call.streams:
            self._handler.on_end(call, reason)


def _challenger(settings: Sip) -> Challenger:
    users = {each.user: str.__str__(each.password) for each in settings.users}
    return Challenger(users, settings.realm, settings.digest)


def facing(peer: str) -> str:
    """The local address, of the same family, from which packets to `peer` leave. Nothing is sent."""
    family = family_of(peer)
    with socket.socket(SOCKETS[family], socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            return LOCALHOST[family]
        return str(probe.getsockname()[0]).partition("%")[0]
