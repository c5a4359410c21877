"""Who comes to the SIP port, and how far: the gate's verdicts with their counters and log lines."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from config.addresses import peer_key
from sip.access import AccessList, OncePer
from sip.errors import PeerError
from sip.protocol.digest import Challenger, Reason
from sip.protocol.message import SipMessage
from sip.protocol.offer_check import METHODS
from sip.request_filter import (
    DROP,
    PASS,
    UNASKED,
    Buckets,
    ConnectionTable,
    FilterVerdict,
    RequestFilter,
    RequestHead,
    Shown,
)

log = structlog.get_logger("sip")

CONNECTED, DISCONNECTED, SHUTDOWN, DESTROYED = 0, 1, 2, 3
"""PJSIP's states of a transport (enum pjsip_transport_state)."""

Check = Callable[[RequestHead, bytes], tuple[slice, ...]]
"""Judges what a request offers or answers, as `offers.check` does."""
Within = Callable[[RequestHead, int, Callable[[], str]], int]
"""(request, CSeq, text) → the verdict on a request within a dialog: a status, `gate.PASS` or `gate.DROP`."""

_SERVED = frozenset(("INVITE", "ACK", "CANCEL", "OPTIONS", "MESSAGE"))
"""What PJSIP answers outside of a dialog; to anything else it would say nothing at all."""
_UNSERVED = {"BYE": 481, "UPDATE": 481, "PRACK": 481, "INFO": 481, "NOTIFY": 481, "SUBSCRIBE": 489}
"""RFC 3261 section 12.2.2, RFC 6665 section 4.2.1.3; all others are 501 (RFC 3261 section 21.5.2)."""
FAILURES_PER_S, FAILURES_BURST = 1.0, 10
"""Answers to requests that could not be judged."""

_MAX_SHOWN = 8
"""Credentials of one request that are looked at: a caller has one for each algorithm and realm of a challenge."""


@dataclass(slots=True)
class DoorCounters:
    """Plain totals, for metrics."""

    unanswered: int = 0
    """Requests of addresses that may not call, beyond the few that are told so."""
    tcp_refused: int = 0
    tcp_expired: int = 0
    """TCP connections closed because no message came, or no more than a refused one."""
    refused: int = 0
    """Requests other than INVITE of addresses that may not call, answered 403."""
    challenged: int = 0
    """INVITEs answered 401, to be repeated with credentials (`sip.users`)."""
    credentials_bad: int = 0
    """INVITEs with credentials that are nobody's; refused with 403, or not answered."""
    auth_failures: collections.Counter[str] = field(default_factory=collections.Counter)
    """INVITEs whose credentials failed, by `sip.protocol.digest.Reason`."""
    errors: int = 0
    """Requests that an error of ours kept from being judged; answered 500, or not at all."""


class Door:
    """What the stack's hook and transports report, judged. `refusal()`: the status for a new call now, or 0."""

    def __init__(
        self,
        access: AccessList,
        *,
        invites_per_s: float,
        max_tcp: int,
        refusal: Callable[[], int],
        within: Within,
        check: Check,
        on_refused: Callable[[int], None],
        clock: Callable[[], float],
        challenger: Challenger | None = None,
        unasked: Callable[[str], bool] | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`challenger` asks for credentials whom `unasked` does not know; by default those who may not call.

        `ready()`: whether calls should be sent here at all, for the answer to OPTIONS.
        """
        self.counters = DoorCounters()
        self.challenger, self._unasked = challenger, unasked or access.allows
        self._refusal, self._ready = refusal, ready
        self._stale = False
        self._asked = ""
        self._gate = RequestFilter(access.allows, refusal, invites_per_s=invites_per_s)
        self._guests = ConnectionTable(access.allows, max_tcp)
        self._within, self._check, self._on_refused, self._clock = within, check, on_refused, clock
        self._failures = Buckets(FAILURES_PER_S, FAILURES_BURST)
        self._once = OncePer()

    @property
    def guests(self) -> int:
        return len(self._guests)

    def lower(self, max_tcp: int) -> None:
        """No more TCP connections than so many, whatever was configured."""
        self._guests.limit = min(self._guests.limit, max_tcp)

    def judge(self, request: RequestHead, cseq: int, packet: Callable[[], bytes]) -> FilterVerdict:
        """`packet()`: the whole message."""
        verdict = self._judge(request, cseq, lambda: packet().decode(errors="replace"))
        if verdict == 401:
            return FilterVerdict(verdict, tuple(("WWW-Authenticate", value) for value in self._challenge()))
        if verdict != PASS or request.method not in METHODS:
            return FilterVerdict(verdict)
        try:
            return FilterVerdict(PASS, closed=self._check(request, packet()))
        except PeerError as error:
            if request.method == "ACK":
                return FilterVerdict(PASS)  # nobody answers it
            if request.method == "INVITE" and not request.to_tag:
                self._on_refused(error.status)
            self.say(request.source, error.status, str(error), method=request.method)
            return FilterVerdict(error.status, error.headers)

    def failed(self) -> int:
        """A request could not be judged, through an error of ours: what becomes of it, as it must not pass.

        Few are answered: it may be anybody's, from anywhere.
        """
        self.counters.errors += 1
        now = self._clock()
        if (held_back := self._once.due("error", now)) is not None:
            log.exception("a SIP request could not be judged and was refused", held_back=held_back)
        return 500 if self._failures.take("", now) else DROP

    def _judge(self, request: RequestHead, cseq: int, text: Callable[[], str]) -> int:
        before = self.counters.auth_failures.total()
        verdict = self._gate.judge(request, self._clock(), lambda: self._credentials(request, text))
        failed = self.counters.auth_failures.total() > before  # then that has been said
        if verdict == DROP:
            self.counters.unanswered += 1
        elif verdict == 401:
            self.counters.challenged += 1
        elif verdict:
            if request.method == "INVITE":
                self._on_refused(verdict)
            else:
                self.counters.refused += 1
            if not failed:
                self.say(request.source, verdict, method=request.method)
        elif request.method == "REGISTER" or request.method not in _SERVED and not request.to_tag:
            return _UNSERVED.get(request.method, 501)
        elif request.to_tag:
            return self._within(request, cseq, text)
        elif request.method == "OPTIONS" and (self._refusal() or not self._ready()):
            return 503  # as an INVITE would be refused (RFC 3261 section 11.2), so that a load balancer goes elsewhere
        return verdict

    def _challenge(self) -> list[str]:
        """Values of WWW-Authenticate, for the request that has just been judged with 401."""
        if not self.challenger:
            return []
        return self.challenger.challenge(self._clock(), source=self._asked, stale=self._stale)

    def caller(self, call_id: str, peer: str) -> str | None:
        """By whose credentials an address that may not call was let in with a call; None when it was not."""
        return self._gate.admitted(call_id, peer)

    def _credentials(self, request: RequestHead, text: Callable[[], str]) -> tuple[Shown, str]:
        if not self.challenger or self._unasked(request.source):
            return UNASKED
        self._stale, self._asked = False, peer_key(request.source)
        try:
            message = SipMessage.parse(text())
        except PeerError:
            return "none", ""
        now, found = self._clock(), [value for name, value in message.headers if name == "authorization"][:_MAX_SHOWN]
        uri = (message.start_line.split() + ["", ""])[1]
        seen = [self.challenger.check(each, request.method, now, uri=uri, source=self._asked) for each in found]
        best = next((each for verdict in ("good", "stale", "bad") for each in seen if each[0] == verdict), None)
        if best is None:
            return "none", ""
        verdict, user, reason = best
        self._stale = verdict == "stale"
        if verdict == "good":
            self._guests.welcome(request.source)
        self.counters.credentials_bad += verdict == "bad"
        if reason:
            self._say_failed(request.source, user, reason, now)
        return verdict, user

    def _say_failed(self, peer: str, user: str, reason: Reason, now: float) -> None:
        """Once per source and minute; `user` is what the peer says."""
        self.counters.auth_failures[reason] += 1
        if (held_back := self._once.due(f"{peer_key(peer)} auth", now)) is not None:
            log.warning("SIP authentication failed", peer=peer, user=user[:64], reason=reason, held_back=held_back)

    def say(self, peer: str, status: int, reason: str = "", *, method: str = "INVITE") -> None:
        """Once per source, status and minute."""
        held_back = self._once.due(f"{peer_key(peer)} {status}", self._clock())
        if held_back is not None:
            reason = reason or ("not on the access list (sip.allow)" if status == 403 else "full, or too fast")
            log.warning(
                "SIP request refused", peer=peer, method=method, status=status, reason=reason, held_back=held_back
            )

    def spoke(self, handle: int) -> None:
        self._guests.spoke(handle)

    def arrived(self, handle: int, peer: str) -> bool:
        """A TCP connection; whether it may stay."""
        stays = self._guests.arrived(handle, peer, self._clock())
        if not stays:
            self.counters.tcp_refused += 1
            if self._once.due(f"{peer_key(peer)} tcp", self._clock()) is not None:
                log.warning("SIP connection refused", peer=peer, reason="sip.max_tcp")
        return stays

    def left(self, handle: int) -> None:
        self._guests.left(handle)

    def has(self, handle: int) -> bool:
        return handle in self._guests

    def overdue(self) -> list[int]:
        """Connections to close now."""
        found = self._guests.overdue(self._clock())
        self.counters.tcp_expired += len(found)
        return found
