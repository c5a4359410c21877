"""The filter of requests before PJSIP's transactions, and the table of TCP connections. No I/O; time is an argument.

PJSIP keeps a transaction for 32 s for every request that it answers, and pjsua a call for every INVITE that it refuses.
A scanner that never acknowledges would occupy the slots of real calls. So requests are refused before PJSIP sees them,
without state, as a stateless server does (RFC 3261 section 8.2.7). A source that may not call soon gets no response.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from config.network.addresses import peer_key

PASS, DROP = 0, -1
"""Verdicts; any other value is the status of the response."""


@dataclass(frozen=True, slots=True)
class FilterVerdict:
    """The decision about a request."""

    status: int
    """`PASS`, `DROP`, or the status of the response."""
    headers: tuple[tuple[str, str], ...] = ()
    """The headers of the response."""
    description: str | None = None
    """The session description that PJSIP gets of a request that passes; empty if there is none. None leaves the request
    as it is, because no code acts on its body."""


UNTRUSTED_PER_S, UNTRUSTED_BURST = 0.2, 10
"""The rate of responses to an address that may not call: enough for a diagnosis, too few for a scanner."""
UNTRUSTED_DIALOG_PER_S, UNTRUSTED_DIALOG_BURST = 10.0, 50
"""The rate of requests within a dialog from an unknown address: behind a proxy it may differ from the INVITE's."""
BURST_S = 2.0
"""The burst of INVITEs from one source, in seconds of its rate."""
RETRY_S = 64.0
"""How long an admitted request may be retransmitted (RFC 3261 section 17.1.1.2: 64*T1 is 32 s)."""
_MAX_SOURCES = 4096
_MAX_PASSED = 16384
AUTHENTICATED_S = 3600.0
"""How long a source that has authenticated may be challenged at the rate of its calls."""

Credentials = Literal["good", "stale", "bad", "none", "unasked"]
"""The verdict on a request's credentials; `unasked` if none were requested."""
UNASKED: tuple[Credentials, str] = ("unasked", "")
FIRST_MESSAGE_S = 10.0
"""A connection without a whole message is closed after this time."""
UNTRUSTED_TCP_S = 32.0
"""A connection from an address that may not call is closed after this time, when it has got its response."""
UNTRUSTED_TCP_EACH = 16
"""The most connections at a time from one source that may not call."""


class TokenBuckets:
    """A token bucket for each source, for at most `_MAX_SOURCES` of them.

    A source is evicted only when its bucket is full again, so that an eviction grants no extra tokens. While the table
    is full, sources without an entry get no tokens: addresses can be forged, and evicting the oldest entry would grant
    a new burst to an attacker who forges enough of them.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __contains__(self, source: str) -> bool:
        return source in self._levels

    def level(self, source: str, now: float) -> float:
        """The tokens of a source; 0 if it has no entry and the table is full."""
        if source not in self._levels:
            return self._burst if self._has_room(now) else 0.0
        level, at = self._levels[source]
        return min(self._burst, level + (now - at) * self._per_s)

    def take(self, source: str, now: float) -> bool:
        """Use up a token; returns whether there was one."""
        level = self.level(source, now)
        granted = level >= 1
        if granted or source in self._levels:
            self._levels[source] = (level - granted, now)
            self._levels.move_to_end(source)
        return granted

    def _has_room(self, now: float) -> bool:
        """Evict the least recent sources with full buckets; returns whether the table has room then."""
        while self._levels:
            source, (level, at) = next(iter(self._levels.items()))
            if level + (now - at) * self._per_s < self._burst:
                break
            del self._levels[source]
        return len(self._levels) < _MAX_SOURCES


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The fields of a request that PJSIP has parsed."""

    method: str
    call_id: str
    branch: str
    """The branch of the topmost Via, which retransmissions repeat."""
    to_tag: str
    """The tag of the To header; empty outside of a dialog."""
    source: str
    """The source address."""
    connected: bool = False
    """Whether the request came by TCP or TLS, so that its source address is not forged."""


class RequestFilter:
    """Decides which requests pass, by their source, its credentials and its rate."""

    def __init__(self, allows: Callable[[str], bool], refusal: Callable[[], int], *, invites_per_s: float) -> None:
        """`allows(source)` is the access list; `refusal()` is the status that a new call would get now, or 0.

        `invites_per_s`: INVITEs of one source that are let in; 0: any number.
        """
        self._allows, self._refusal = allows, refusal
        self._invites = TokenBuckets(invites_per_s, max(1.0, invites_per_s * BURST_S)) if invites_per_s else None
        # One table for requests over connections and one for others, which only forged addresses can fill.
        self._untrusted = {kind: TokenBuckets(UNTRUSTED_PER_S, UNTRUSTED_BURST) for kind in (False, True)}
        self._untrusted_in_dialog = {
            kind: TokenBuckets(UNTRUSTED_DIALOG_PER_S, UNTRUSTED_DIALOG_BURST) for kind in (False, True)
        }
        self._passed: OrderedDict[bytes, float] = OrderedDict()
        """When each INVITE was admitted, by Call-ID and branch."""
        self._users: OrderedDict[bytes, str] = OrderedDict()
        """The user whose credentials admitted a call, by Call-ID and source."""
        self._authenticated: OrderedDict[str, float] = OrderedDict()
        """When each source last authenticated."""

    def user_of(self, call_id: str, source: str) -> str | None:
        """The user whose credentials admitted this call from an address that may not call; None if it was not."""
        return self._users.get(_key(call_id, source))

    def check(
        self, request: RequestHead, now: float, credentials: Callable[[], tuple[Credentials, str]] = lambda: UNASKED
    ) -> int:
        """The verdict on a request: `PASS`, `DROP`, or the status of the response.

        `credentials()` returns the verdict on the credentials of an INVITE that begins a call, and their user.
        """
        allowed = self._allows(request.source)
        # An address on the access list counts alone; any other source may own a whole network of addresses.
        source = request.source if allowed else peer_key(request.source)
        known = allowed or self.user_of(request.call_id, request.source) is not None
        if request.method != "INVITE" or request.to_tag:
            return PASS if known else self._refuse_untrusted(request, source, now)
        key = _key(request.call_id, request.branch)
        if known and now - self._passed.get(key, -RETRY_S) < RETRY_S:
            return PASS  # a retransmission, which its transaction answers
        shown, user = credentials()
        if shown in ("none", "stale"):
            return self._challenge(request, source, now, allowed=allowed)
        if shown == "good":
            _remember(self._users, _key(request.call_id, request.source), user)
            _remember(self._authenticated, source, now)
        elif shown == "bad" or not allowed:
            return self._refuse_untrusted(request, source, now)
        if self._invites is not None and not self._invites.take(source, now):
            return 503
        status = self._refusal()
        if not status:
            _remember(self._passed, key, now)
        return status

    def _challenge(self, request: RequestHead, source: str, now: float, *, allowed: bool) -> int:
        """Challenge a source. One that may call, or has authenticated, is challenged as often as it may call."""
        authenticated = now - self._authenticated.get(source, -AUTHENTICATED_S) < AUTHENTICATED_S
        limit = self._invites if authenticated or allowed else self._untrusted[request.connected]
        return 401 if limit is None or limit.take(source, now) else DROP

    def _refuse_untrusted(self, request: RequestHead, source: str, now: float) -> int:
        """The verdict on a request whose source may not call, or has sent wrong credentials."""
        if request.to_tag:
            return PASS if self._untrusted_in_dialog[request.connected].take(source, now) else DROP
        if request.method == "ACK":
            return DROP
        return 403 if self._untrusted[request.connected].take(source, now) else DROP


def _key(*parts: str) -> bytes:
    """A fixed-size key for values chosen by a peer, each of which may have 64 KB."""
    return blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=16).digest()


def _remember(kept: OrderedDict[Any, Any], key: object, value: object) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MAX_PASSED:
        kept.popitem(last=False)


class ConnectionTable:
    """The TCP connections that peers have opened to the SIP port."""

    def __init__(self, allows: Callable[[str], bool], limit: int) -> None:
        self._allows, self._limit = allows, limit
        self._open: dict[int, _CountedConnection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def lower(self, most: int) -> None:
        """Lower the limit."""
        self._limit = min(self._limit, most)

    def add(self, handle: int, peer: str, now: float) -> bool:
        """Whether a new connection may stay. It is counted until `remove`."""
        untrusted, network = not self._allows(peer), peer_key(peer)
        others = [connection.network for connection in self._open.values() if connection.untrusted]
        full = len(self._open) >= self._limit
        crowded = len(others) >= self._limit // 4 or others.count(network) >= UNTRUSTED_TCP_EACH
        self._open[handle] = _CountedConnection(peer, network, untrusted, now)
        return not full and not (untrusted and crowded)

    def on_message(self, handle: int) -> None:
        """Note that a complete request or response has arrived."""
        if (connection := self._open.get(handle)) is not None:
            connection.has_message = True

    def trust(self, peer: str) -> None:
        """Treat the connections of this address, which has authenticated, like those of addresses that may call."""
        for connection in self._open.values():
            if connection.peer == peer:
                connection.untrusted = False

    def remove(self, handle: int) -> bool:
        """Remove a connection; returns False if it had been removed already."""
        return self._open.pop(handle, None) is not None

    def expired(self, now: float) -> list[int]:
        """The connections to close: those without a message for too long, and those of sources that may not call."""
        return [
            handle
            for handle, connection in self._open.items()
            if now - connection.since_s > FIRST_MESSAGE_S
            and not connection.has_message
            or now - connection.since_s > UNTRUSTED_TCP_S
            and connection.untrusted
        ]


@dataclass(slots=True)
class _CountedConnection:
    peer: str
    network: str
    untrusted: bool
    since_s: float
    has_message: bool = False
