"""Which requests reach PJSIP's transactions, and which TCP connections stay. No I/O; time is an argument.

PJSIP keeps a transaction for 32 s for everything it answers, and pjsua a call for every INVITE it refuses: a scanner
that never acknowledges would hold the slots of real calls. So what is to be refused is refused before, without a trace
left, as a stateless server does (RFC 3261 section 8.2.7), and who is nobody's peer is soon not answered at all.
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
    """What becomes of a request."""

    status: int
    """`PASS`, `DROP`, or the status to answer with."""
    headers: tuple[tuple[str, str], ...] = ()
    """Of the answer."""
    closed: tuple[slice, ...] = ()
    """Bytes of a request that passes, to be overwritten with the digit 0: ports of media lines that are not used."""


STRANGER_PER_S, STRANGER_BURST = 0.2, 10
"""Answers for an address that may not call: enough to see why, too few for a scanner."""
STRANGER_DIALOG_PER_S, STRANGER_DIALOG_BURST = 10.0, 50
"""Requests within a dialog may come past the proxy that the INVITE came through."""
BURST_S = 2.0
RETRY_S = 64.0
"""For so long a request may be repeated (RFC 3261 section 17.1.1.2: 64*T1 is 32 s)."""
_MAX_SOURCES = 4096
_MAX_PASSED = 16384
ACQUAINTED_S = 3600.0
"""For so long who has shown credentials is asked for them as often as it calls."""

Shown = Literal["good", "stale", "bad", "none", "unasked"]
"""Credentials that came with a request; `unasked`: nobody is asked for any."""
UNASKED: tuple[Shown, str] = ("unasked", "")
FIRST_MESSAGE_S = 10.0
STRANGER_TCP_S = 32.0
STRANGER_TCP_EACH = 16


class Buckets:
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
    """What PJSIP has parsed of a request."""

    method: str
    call_id: str
    branch: str
    """Of the topmost Via: repetitions have the same one."""
    to_tag: str
    """Empty outside of a dialog."""
    source: str
    """Address that it came from."""
    connected: bool = False
    """By TCP or TLS: nobody has made that address up."""


class RequestFilter:
    """`allows(source)` is the access list, `refusal()` the status by which a new call would be refused now, or 0."""

    def __init__(self, allows: Callable[[str], bool], refusal: Callable[[], int], *, invites_per_s: float) -> None:
        self._allows, self._refusal = allows, refusal
        self._invites = Buckets(invites_per_s, max(1.0, invites_per_s * BURST_S)) if invites_per_s else None
        # Connected or not: made-up addresses may fill the one table, and leave the other to those that are real.
        self._strangers = {kind: Buckets(STRANGER_PER_S, STRANGER_BURST) for kind in (False, True)}
        self._stranger_dialogs = {kind: Buckets(STRANGER_DIALOG_PER_S, STRANGER_DIALOG_BURST) for kind in (False, True)}
        self._passed: OrderedDict[bytes, float] = OrderedDict()
        self._admitted: OrderedDict[bytes, str] = OrderedDict()
        self._acquainted: OrderedDict[str, float] = OrderedDict()

    def admitted(self, call_id: str, source: str) -> str | None:
        """By whose credentials an address that may not call has been let in with this call."""
        return self._admitted.get(_key(call_id, source))

    def judge(
        self, request: RequestHead, now: float, credentials: Callable[[], tuple[Shown, str]] = lambda: UNASKED
    ) -> int:
        """`credentials()`: those of an INVITE that begins a call, and whose they are."""
        allowed = self._allows(request.source)
        # Who is on the list is known by its address; anybody else has a whole network of them.
        who = request.source if allowed else peer_key(request.source)
        known = allowed or self.admitted(request.call_id, request.source) is not None
        if request.method != "INVITE" or request.to_tag:
            return PASS if known else self._judge_stranger(request, who, now)
        key = _key(request.call_id, request.branch)
        if known and now - self._passed.get(key, -RETRY_S) < RETRY_S:
            return PASS  # a repetition: its transaction answers
        shown, user = credentials()
        if shown == "good":
            _remember(self._admitted, _key(request.call_id, request.source), user)
            _remember(self._acquainted, who, now)
        elif shown != "unasked" or not allowed:
            return self._judge_stranger(request, who, now, shown, allowed=allowed)
        if self._invites is not None and not self._invites.take(who, now):
            return 503
        status = self._refusal()
        if not status:
            _remember(self._passed, key, now)
        return status

    def _judge_stranger(
        self, request: RequestHead, who: str, now: float, shown: Shown = "unasked", *, allowed: bool = False
    ) -> int:
        if request.to_tag:
            return PASS if self._stranger_dialogs[request.connected].take(who, now) else DROP
        if request.method == "ACK":
            return DROP
        asked = shown in ("none", "stale")
        acquainted = now - self._acquainted.get(who, -ACQUAINTED_S) < ACQUAINTED_S
        limit = self._invites if asked and (acquainted or allowed) else self._strangers[request.connected]
        if limit is not None and not limit.take(who, now):
            return DROP
        return 401 if asked else 403


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
        self._allows, self.limit = allows, limit
        self._open: dict[int, _Guest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, handle: int) -> bool:
        return handle in self._open

    def arrived(self, handle: int, peer: str, now: float) -> bool:
        """Whether it may stay. It is counted until `left`."""
        strange = not self._allows(peer)
        network = peer_key(peer)
        strangers = [guest.network for guest in self._open.values() if guest.strange] if strange else []
        full = len(self._open) >= self.limit
        crowded = len(strangers) >= self.limit // 4 or strangers.count(network) >= STRANGER_TCP_EACH
        self._open[handle] = _Guest(peer, network, strange, now)
        return not full and not (strange and crowded)

    def spoke(self, handle: int) -> None:
        """A whole request or response has come."""
        if (guest := self._open.get(handle)) is not None:
            guest.spoke = True

    def welcome(self, peer: str) -> None:
        """It has shown credentials: its connections stay as those of who may call do."""
        for guest in self._open.values():
            if guest.peer == peer:
                guest.strange = False

    def left(self, handle: int) -> None:
        self._open.pop(handle, None)

    def overdue(self, now: float) -> list[int]:
        """Those to close: who has said nothing for too long, and strangers who have had their answer."""
        return [
            handle
            for handle, guest in self._open.items()
            if now - guest.since_s > FIRST_MESSAGE_S
            and not guest.spoke
            or now - guest.since_s > STRANGER_TCP_S
            and guest.strange
        ]


@dataclass(slots=True)
class _Guest:
    peer: str
    network: str
    strange: bool
    since_s: float
    spoke: bool = False
