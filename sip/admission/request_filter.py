"""Which requests reach PJSIP's transactions, and which TCP connections stay. No I/O; time is an argument.

PJSIP keeps a transaction for 32 s for everything it answers, and pjsua a call for every INVITE it refuses: a scanner
that never acknowledges would hold the slots of real calls. So what is to be refused is refused before, without a trace
left, as a stateless server does (RFC 3261 section 8.2.7), and a source that may not call soon gets no answer at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from config.addresses import peer_key

PASS, DROP = 0, -1
"""Verdicts; any other is the status to answer with."""


@dataclass(frozen=True, slots=True)
class FilterVerdict:
    """The decision about a request."""

    status: int
    """`PASS`, `DROP`, or the status to answer with."""
    headers: tuple[tuple[str, str], ...] = ()
    """The headers of the answer."""
    description: str | None = None
    """The session description that PJSIP is shown of a request that passes; empty: there is none. None: whatever there
    is, nobody acts on it."""


UNTRUSTED_PER_S, UNTRUSTED_BURST = 0.2, 10
"""Answers for an address that may not call: enough to see why, too few for a scanner."""
UNTRUSTED_DIALOG_PER_S, UNTRUSTED_DIALOG_BURST = 10.0, 50
"""Requests within a dialog may come from another address than the INVITE did, as past a proxy."""
BURST_S = 2.0
"""A source may send the INVITEs of so many seconds at once."""
RETRY_S = 64.0
"""A request may be repeated for so long (RFC 3261 section 17.1.1.2: 64*T1 is 32 s)."""
_MAX_SOURCES = 4096
_MAX_PASSED = 16384
AUTHENTICATED_S = 3600.0
"""A source that has shown credentials is asked for them again, for so long, as often as it calls."""

Credentials = Literal["good", "stale", "bad", "none", "unasked"]
"""The value of a request's credentials; `unasked`: nobody is asked for any."""
UNASKED: tuple[Credentials, str] = ("unasked", "")
FIRST_MESSAGE_S = 10.0
"""A connection without a whole message is closed after this time."""
UNTRUSTED_TCP_S = 32.0
"""A connection from an address that may not call is closed after this time: it has had its answer."""
UNTRUSTED_TCP_EACH = 16
"""Connections that one source that may not call can have at one time."""


class TokenBuckets:
    """A token bucket for each source, for at most `_MAX_SOURCES` of them.

    A source is forgotten only when its bucket is full again, so that forgetting gives nobody anything. While the table
    is full, sources that are not in it get nothing: addresses are easily made up, and forgetting the oldest would hand
    a new burst to whoever makes up enough of them.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __contains__(self, source: str) -> bool:
        return source in self._levels

    def level(self, source: str, now: float) -> float:
        """How many are left; none for a source that finds no room in the table."""
        if source not in self._levels:
            return self._burst if self._has_room(now) else 0.0
        level, at = self._levels[source]
        return min(self._burst, level + (now - at) * self._per_s)

    def take(self, source: str, now: float) -> bool:
        """Whether one more is within the limit."""
        level = self.level(source, now)
        granted = level >= 1
        if granted or source in self._levels:
            self._levels[source] = (level - granted, now)
            self._levels.move_to_end(source)
        return granted

    def _has_room(self, now: float) -> bool:
        """Forgets those that were seen least recently and whose buckets are full again."""
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
    """The branch of the topmost Via: repetitions have the same one."""
    to_tag: str
    """Empty outside of a dialog."""
    source: str
    """Address that it came from."""
    connected: bool = False
    """The request came by TCP or TLS: nobody has made that address up."""


class RequestFilter:
    """Which requests pass, by their source, its credentials, and how many it sends."""

    def __init__(self, allows: Callable[[str], bool], refusal: Callable[[], int], *, invites_per_s: float) -> None:
        """`allows(source)` is the access list; `refusal()` is the status that a new call would get now, or 0.

        `invites_per_s`: INVITEs of one source that are let in; 0: any number.
        """
        self._allows, self._refusal = allows, refusal
        self._invites = TokenBuckets(invites_per_s, max(1.0, invites_per_s * BURST_S)) if invites_per_s else None
        # By whether a connection is there: made-up addresses may fill the one table, and leave the other to real ones.
        self._untrusted = {kind: TokenBuckets(UNTRUSTED_PER_S, UNTRUSTED_BURST) for kind in (False, True)}
        self._untrusted_in_dialog = {
            kind: TokenBuckets(UNTRUSTED_DIALOG_PER_S, UNTRUSTED_DIALOG_BURST) for kind in (False, True)
        }
        self._passed: OrderedDict[bytes, float] = OrderedDict()
        """When each INVITE was let in, by Call-ID and branch."""
        self._users: OrderedDict[bytes, str] = OrderedDict()
        """Whose credentials let a call in, by Call-ID and source."""
        self._authenticated: OrderedDict[str, float] = OrderedDict()
        """When each source last showed credentials."""

    def user_of(self, call_id: str, source: str) -> str | None:
        """The user by whose credentials an address that may not call was let in with this call; None when it was
        not."""
        return self._users.get(_key(call_id, source))

    def check(
        self, request: RequestHead, now: float, credentials: Callable[[], tuple[Credentials, str]] = lambda: UNASKED
    ) -> int:
        """`PASS`, `DROP`, or the status to answer with.

        `credentials()`: those of an INVITE that begins a call, and whose they are.
        """
        allowed = self._allows(request.source)
        # An address on the list stands for itself; anybody else may have a whole network of addresses.
        source = request.source if allowed else peer_key(request.source)
        known = allowed or self.user_of(request.call_id, request.source) is not None
        if request.method != "INVITE" or request.to_tag:
            return PASS if known else self._refuse_untrusted(request, source, now)
        key = _key(request.call_id, request.branch)
        if known and now - self._passed.get(key, -RETRY_S) < RETRY_S:
            return PASS  # a repetition: its transaction answers
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
        """A source that may call, or has shown credentials, may be asked for them as often as it may call."""
        authenticated = now - self._authenticated.get(source, -AUTHENTICATED_S) < AUTHENTICATED_S
        limit = self._invites if authenticated or allowed else self._untrusted[request.connected]
        return 401 if limit is None or limit.take(source, now) else DROP

    def _refuse_untrusted(self, request: RequestHead, source: str, now: float) -> int:
        """Decide about a request whose source may not call, or has shown credentials that are nobody's."""
        if request.to_tag:
            return PASS if self._untrusted_in_dialog[request.connected].take(source, now) else DROP
        if request.method == "ACK":
            return DROP
        return 403 if self._untrusted[request.connected].take(source, now) else DROP


def _key(*parts: str) -> bytes:
    """Stands for names of a peer's choice in a table: each of them may have 64 KB."""
    return blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=16).digest()


def _remember(kept: OrderedDict[Any, Any], key: object, value: object) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MAX_PASSED:
        kept.popitem(last=False)


class ConnectionTable:
    """The TCP connections that others have opened to the SIP port."""

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
        """A whole request or response has come."""
        if (connection := self._open.get(handle)) is not None:
            connection.has_message = True

    def trust(self, peer: str) -> None:
        """This address has shown credentials: its connections stay as those of addresses that may call do."""
        for connection in self._open.values():
            if connection.peer == peer:
                connection.untrusted = False

    def remove(self, handle: int) -> bool:
        """False when it was not there any more."""
        return self._open.pop(handle, None) is not None

    def expired(self, now: float) -> list[int]:
        """The connections to close: no message has come for too long, or the source may not call and has had its
        answer."""
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
