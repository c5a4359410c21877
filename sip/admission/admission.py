"""The admission of SIP requests and TCP connections, with counters and log lines.

Every request passes through `Admission.check` before PJSIP has a transaction for it, in this order:

1. `RequestFilter`: whether its address may call or has shown credentials, and how often it does (403, 401, 503, or
   no answer).
2. Unsupported methods, URIs of other schemes, requests within a dialog, and OPTIONS while no call would be accepted
   (416, 481, 501, 503).
3. The session description in it (400, 415, 488).
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from config.log.rate_limit import LogRateLimit
from config.metrics.counters import counter, counter_by
from config.network.access_list import AccessList
from config.network.addresses import peer_key
from config.settings import Sip
from sip.admission.digest import Challenger, Reason
from sip.admission.request_filter import (
    DROP,
    PASS,
    UNASKED,
    ConnectionTable,
    Credentials,
    FilterVerdict,
    RequestFilter,
    RequestHead,
    TokenBuckets,
)
from sip.protocol.errors import PeerError
from sip.protocol.message import SipMessage
from sip.protocol.offer_check import METHODS

log = structlog.get_logger("sip")

RETRY_AFTER_S = 10
"""Retry-After of every 503."""
_SERVED = frozenset(("INVITE", "ACK", "CANCEL", "OPTIONS", "MESSAGE"))
"""The methods that PJSIP answers outside of a dialog; to any other it would not answer at all."""
_UNSERVED = {"BYE": 481, "UPDATE": 481, "PRACK": 481, "INFO": 481, "NOTIFY": 481, "SUBSCRIBE": 489}
"""RFC 3261 section 12.2.2, RFC 6665 section 4.2.1.3; all others are 501 (RFC 3261 section 21.5.2)."""
_SCHEMES = frozenset((b"sip", b"sips", b"tel"))
"""The schemes of request URIs; any other is 416 (RFC 3261 section 8.2.2.1), `urn:service:sos` for one (RFC 5031)."""
FAILURES_PER_S, FAILURES_BURST = 1.0, 10
"""The rate of responses to requests that could not be checked because of a bug of ours."""
_MAX_CREDENTIALS = 8
"""The most credentials of one request that are checked; a caller sends one per algorithm and realm of a challenge."""


@dataclass(slots=True)
class AdmissionCounters:
    """The totals of the admission, for metrics."""

    unanswered: int = counter("Counts SIP requests from addresses that may not call that were left unanswered.")
    tcp_refused: int = counter("Counts TCP connections to the SIP port that were refused because of sip.max_tcp.")
    tcp_expired: int = counter("Counts TCP connections to the SIP port that were closed because no message came.")
    refused: int = counter(
        "Counts SIP requests other than INVITE, from addresses that may not call, that were answered with 403."
    )
    challenged: int = counter("Counts SIP calls that were asked for credentials (sip.users).")
    credentials_bad: int = counter("Counts SIP calls whose credentials match no user.")
    auth_failures: collections.Counter[str] = counter_by(
        "reason",
        (
            "Counts SIP calls whose credentials failed, by reason: malformed, realm, algorithm, "
            "nonce, replayed, uri, user, password, or slowed after too many wrong passwords."
        ),
        name="sip_auth_failures",
    )
    """Counts by `sip.admission.digest.Reason`."""
    unreadable: int = counter("Counts SIP messages that were dropped without an answer because they could not be read.")
    errors: int = counter("Counts SIP requests that were refused because an error in the worker prevented their check.")


class AdmittedCalls(Protocol):
    """The calls that requests begin, or to which they belong."""

    ready: Callable[[], bool]
    """Returns whether calls should be sent to this worker, which the response to OPTIONS tells."""

    def capacity(self) -> int:
        """The status with which a new call would be refused now, or 0."""

    def on_rejected(self, status: int) -> None:
        """Count an INVITE that was refused with this status."""

    def check_in_dialog(self, request: RequestHead, cseq: int, text: Callable[[], str]) -> int:
        """The verdict on a request within a dialog: a status, `PASS` or `DROP`."""

    def check_body(self, request: RequestHead, packet: bytes) -> str | None:
        """Check the offer or answer of a request, as `sip.protocol.offer_check.check` does."""

    def on_connection(self, request: RequestHead, cseq: int, peer: tuple[str, int], text: str) -> None:
        """Note that an admitted request within a dialog came by the connection whose other end is `peer`."""


class Admission:
    """Admits or refuses requests and connections. All methods must be called on the loop's thread."""

    def __init__(
        self,
        access: AccessList,
        settings: Sip,
        calls: AdmittedCalls,
        clock: Callable[[], float],
        *,
        unasked: Callable[[str], bool] | None = None,
    ) -> None:
        """`unasked(source)`: whether no credentials of `sip.users` are requested; by default if it may call."""
        self.counters = AdmissionCounters()
        self._unasked, self._calls, self._clock = unasked or access.allows, calls, clock
        self._stale = False
        self._challenged_source = ""
        self._filter = RequestFilter(access.allows, calls.capacity, invites_per_s=settings.max_invites_per_s)
        self.connections = ConnectionTable(access.allows, settings.max_tcp)
        self.set_users(settings)
        self._failures = TokenBuckets(FAILURES_PER_S, FAILURES_BURST)
        self._once = LogRateLimit()

    def set_users(self, settings: Sip) -> None:
        """Set the users whose credentials are valid from now on; earlier challenges become stale."""
        users = {each.user: each.password.reveal() for each in settings.users}
        self._challenger = Challenger(users, settings.realm, settings.digest)

    # Requests

    def check(self, request: RequestHead, cseq: int, packet: Callable[[], bytes]) -> FilterVerdict:
        """Decide about a request. `packet()` is the whole message."""
        status = self._check_head(request, cseq, packet)
        if status == 401:
            return FilterVerdict(status, tuple(("WWW-Authenticate", value) for value in self._challenge()))
        if status == 503:
            return FilterVerdict(status, (("Retry-After", str(RETRY_AFTER_S)),))
        if status != PASS or request.method not in METHODS:
            return FilterVerdict(status)
        try:
            return FilterVerdict(PASS, description=self._calls.check_body(request, packet()))
        except PeerError as error:
            if request.method == "ACK":
                return FilterVerdict(PASS)  # an ACK is never answered
            if request.method == "INVITE" and not request.to_tag:
                self._calls.on_rejected(error.status)
            self.log_refused(request.source, error.status, str(error), method=request.method)
            return FilterVerdict(error.status, error.headers)

    def on_connection(
        self, request: RequestHead, cseq: int, peer: tuple[str, int], packet: Callable[[], bytes]
    ) -> None:
        """Report that an admitted request within a dialog came by the connection whose other end is `peer`."""
        self._calls.on_connection(request, cseq, peer, packet().decode(errors="replace"))

    def on_error(self) -> int:
        """The status for a request whose check raised an exception, which is being handled.

        The request must not pass. Few such requests are answered, because they may come from anywhere.
        """
        self.counters.errors += 1
        now = self._clock()
        if (held_back := self._once.due("error", now)) is not None:
            log.exception("a SIP request could not be judged and was refused", held_back=held_back)
        return 500 if self._failures.take("", now) else DROP

    def on_unreadable(self, beginning: str) -> None:
        """Count a dropped message that lacks its start line, or a header that every response must repeat."""
        self.counters.unreadable += 1
        if (held_back := self._once.due("unreadable", self._clock())) is not None:
            first = "".join(c if c.isprintable() else " " for c in beginning.lstrip().partition("\r\n")[0])
            log.info("a SIP message that cannot be read was dropped", begins=first, held_back=held_back)

    def user_of(self, call_id: str, source: str) -> str | None:
        """The user whose credentials admitted a call from an address that may not call; None if there is none."""
        return self._filter.user_of(call_id, source)

    def log_refused(self, source: str, status: int, reason: str = "", *, method: str = "INVITE") -> None:
        """Log a refused request, once per source, status and minute."""
        held_back = self._once.due(f"{peer_key(source)} {status}", self._clock())
        if held_back is not None:
            reason = reason or ("not on the access list (sip.allow)" if status == 403 else "full, or too fast")
            log.warning(
                "SIP request refused", peer=source, method=method, status=status, reason=reason, held_back=held_back
            )

    def _check_head(self, request: RequestHead, cseq: int, packet: Callable[[], bytes]) -> int:
        def text() -> str:
            return packet().decode(errors="replace")

        failures = self.counters.auth_failures.total()
        status = self._filter.check(request, self._clock(), lambda: self._credentials(request, text))
        if status == DROP:
            self.counters.unanswered += 1
        elif status == 401:
            self.counters.challenged += 1
        elif status:
            if request.method == "INVITE":
                self._calls.on_rejected(status)
            else:
                self.counters.refused += 1
            if self.counters.auth_failures.total() == failures:  # else that has been logged
                self.log_refused(request.source, status, method=request.method)
        elif request.method == "REGISTER" or request.method not in _SERVED and not request.to_tag:
            return _UNSERVED.get(request.method, 501)
        elif (scheme := _scheme_of(packet())) not in _SCHEMES:
            return self._refuse_scheme(request, scheme)
        elif request.to_tag:
            return self._calls.check_in_dialog(request, cseq, text)
        elif request.method == "OPTIONS" and (self._calls.capacity() or not self._calls.ready()):
            return 503  # as for an INVITE (RFC 3261 section 11.2), so that a load balancer chooses another worker
        return status

    def _refuse_scheme(self, request: RequestHead, scheme: bytes) -> int:
        if request.method == "ACK":
            return DROP  # an ACK is never answered
        if request.method == "INVITE" and not request.to_tag:
            self._calls.on_rejected(416)
        name = scheme.decode("latin-1")[:32]
        reason = f"the request URI is {name}:, and not sip:, sips: or tel:"
        self.log_refused(request.source, 416, reason, method=request.method)
        return 416

    def _challenge(self) -> list[str]:
        """The values of WWW-Authenticate for the request that is being answered with 401."""
        return self._challenger.challenge(self._clock(), source=self._challenged_source, stale=self._stale)

    def _credentials(self, request: RequestHead, text: Callable[[], str]) -> tuple[Credentials, str]:
        """The verdict on the credentials of an INVITE, and their user."""
        if not self._challenger or self._unasked(request.source):
            return UNASKED
        self._stale, self._challenged_source = False, peer_key(request.source)
        try:
            message = SipMessage.parse(text())
        except PeerError:
            return "none", ""
        now = self._clock()
        values = [value for name, value in message.headers if name == "authorization"][:_MAX_CREDENTIALS]
        uri = (message.start_line.split() + ["", ""])[1]
        source = self._challenged_source
        checked = [self._challenger.check(each, request.method, now, uri=uri, source=source) for each in values]
        best = next((each for verdict in ("good", "stale", "bad") for each in checked if each[0] == verdict), None)
        if best is None:
            return "none", ""
        verdict, user, reason = best
        self._stale = verdict == "stale"
        if verdict == "good":
            self.connections.trust(request.source)
        self.counters.credentials_bad += verdict == "bad"
        if reason:
            self._log_failed(request.source, user, reason, now)
        return verdict, user

    def _log_failed(self, source: str, user: str, reason: Reason, now: float) -> None:
        """Log a failed authentication, once per source and minute; `user` is the name that the peer gave."""
        self.counters.auth_failures[reason] += 1
        if (held_back := self._once.due(f"{peer_key(source)} auth", now)) is not None:
            log.warning("SIP authentication failed", peer=source, user=user[:64], reason=reason, held_back=held_back)

    # TCP connections opened by peers

    def on_connected(self, handle: int, peer: str) -> bool:
        """Whether a new connection may stay. It is counted until `connections.remove`."""
        stays = self.connections.add(handle, peer, self._clock())
        if not stays:
            self.counters.tcp_refused += 1
            if self._once.due(f"{peer_key(peer)} tcp", self._clock()) is not None:
                log.warning("SIP connection refused", peer=peer, reason="sip.max_tcp")
        return stays

    def expired(self) -> list[int]:
        """The connections that must be closed now; they are counted until `connections.remove`."""
        found = self.connections.expired(self._clock())
        self.counters.tcp_expired += len(found)
        return found


def _scheme_of(packet: bytes) -> bytes:
    """The scheme of the request URI, in lower case."""
    return packet.split(None, 2)[1].partition(b":")[0].lower()
