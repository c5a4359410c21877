"""Who comes to the SIP port, and how far: the gate's verdicts with their counters and log lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from sip.access import AccessList, OncePer
from sip.gate import DROP, Gate, Guests, Request

log = structlog.get_logger("sip")

CONNECTED, DISCONNECTED, SHUTDOWN, DESTROYED = 0, 1, 2, 3
"""PJSIP's states of a transport (enum pjsip_transport_state)."""

Info = Callable[[Request, int, Callable[[], str]], int]
"""(request, CSeq, text) → the status that answers an INFO, or `gate.PASS` to leave it to PJSIP."""


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


class Door:
    """What the stack's hook and transports report, judged. `refusal()`: the status for a new call now, or 0."""

    def __init__(
        self,
        access: AccessList,
        *,
        invites_per_s: float,
        max_tcp: int,
        refusal: Callable[[], int],
        info: Info,
        on_refused: Callable[[int], None],
        clock: Callable[[], float],
    ) -> None:
        self.counters = DoorCounters()
        self._gate = Gate(access.allows, refusal, invites_per_s=invites_per_s)
        self._guests = Guests(access.allows, max_tcp)
        self._info, self._on_refused, self._clock = info, on_refused, clock
        self._once = OncePer()

    @property
    def guests(self) -> int:
        return len(self._guests)

    def lower(self, max_tcp: int) -> None:
        """No more TCP connections than so many, whatever was configured."""
        self._guests.limit = min(self._guests.limit, max_tcp)

    def judge(self, request: Request, cseq: int, text: Callable[[], str]) -> int:
        verdict = self._gate.judge(request, self._clock())
        if verdict == DROP:
            self.counters.unanswered += 1
        elif verdict:
            if request.method == "INVITE":
                self._on_refused(verdict)
            else:
                self.counters.refused += 1
            self.say(request.source, verdict, method=request.method)
        elif request.method == "INFO" and request.to_tag:
            return self._info(request, cseq, text)
        return verdict

    def say(self, peer: str, status: int, reason: str = "", *, method: str = "INVITE") -> None:
        """Once per source, status and minute."""
        held_back = self._once.due(f"{peer} {status}", self._clock())
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
            if self._once.due(f"{peer} tcp", self._clock()) is not None:
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
