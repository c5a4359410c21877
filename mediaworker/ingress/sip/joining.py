"""SIP calls that each carry one side of a conversation: they share one call, in which each is a leg.

A route names the header that they have in common (`join`). The INVITEs must come from the same address and for the same
account, because the name of a conversation is not secret. The call ends with the last SIP call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import count

import structlog

from audio.rtp.dtmf import DigitRate
from mediaworker.calls.call import Call
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused
from mediaworker.calls.shared import SharedCall, SharedCalls
from sip.pjsip.call import SipCall
from sip.protocol.siprec import Participant

log = structlog.get_logger()

MAX_LEGS = 8
"""The most legs of one call: each occupies a row of the VAD's batch until the call ends."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a SIP call in a call: one of its legs, or all of them."""

    sip: SipCall
    call: Call
    leg: str = ""
    """Its leg, where others may join the call; "": the call is its own, whose legs the streams of the peer name."""
    digits: DigitRate = field(default_factory=DigitRate)
    """The rate of those that come by SIP INFO."""
    heard: dict[str, tuple[Participant, ...]] = field(default_factory=dict)
    """Leg → who was named last as heard there, of a recording session."""

    @property
    def legs(self) -> Set[str]:
        """The SIP call's legs, in the order in which they were opened."""
        return {self.leg} if self.leg else self.call.members.keys()

    def hang_up(self) -> None:
        self.sip.hangup()


class JoinedCalls(SharedCalls[Seat]):
    """The shared calls, by account, address, header, and each of the names in the header."""

    def join(self, sip: SipCall, rule: str, names: Sequence[str], spec: LegSpec, open_call: Callable[[], Call]) -> Seat:
        """Open a leg like `spec` in an open call with one of these names, or in a new call. Raises CallRefused."""
        keys = [(sip.account, sip.peer, rule, name) for name in names]
        shared = self.find(*keys)
        if shared is None:
            shared = self.add(open_call(), *keys)
            leg = spec.leg
        else:
            leg = self._claim_leg(shared, spec)
            self.name(shared, *keys)
            log.info("a SIP call has joined another", call_id=shared.call.id, leg=leg, external_id=sip.call_id)
        seat = shared.seats[leg] = Seat(sip, shared.call, leg)
        return seat

    def _claim_leg(self, shared: SharedCall[Seat], spec: LegSpec) -> str:
        """Open another leg, or reuse one with the same speaker whose SIP call has ended. Raises CallRefused."""
        call = shared.call
        for leg, member in call.members.items():
            if leg not in shared.seats and (member.spec.role, member.spec.name) == (spec.role, spec.name):
                call.media_changed(leg, spec.codec, spec.telephone_event, spec.payload_type, spec.event_clock_hz)
                return leg
        if len(call.members) >= MAX_LEGS:
            raise CallRefused(503, f"the call has {MAX_LEGS} legs")
        leg = next(name for n in count(2) if (name := f"{spec.leg}-{n}") not in call.members)
        call.add_leg(replace(spec, leg=leg))
        return leg

    def give_up(self, seat: Seat, reason: str) -> None:
        """Remove an ended SIP call; the call ends if it was the last one."""
        self.leave(seat.call, [seat.leg], seat, reason)
        seat.call.left(seat.leg)
