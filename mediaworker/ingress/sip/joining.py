"""SIP calls of one conversation, each of which carries one side of it: they share one call, and each is a leg.

A route says by which header (`join`). The INVITEs must have come from the same address and for the same account,
because what a conversation is called is no secret. The call ends with the last of them.
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
"""The most legs of one call: each takes a row of the VAD until the call ends."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What a SIP call has in a call: a leg, or all of them."""

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
        """In the order in which they were opened, if there are several."""
        return {self.leg} if self.leg else self.call.members.keys()

    def hang_up(self) -> None:
        self.sip.hangup()


class JoinedCalls(SharedCalls[Seat]):
    """By account, address, header, and one of the names that the header gives."""

    def join(self, sip: SipCall, rule: str, names: Sequence[str], spec: LegSpec, open_call: Callable[[], Call]) -> Seat:
        """A leg like `spec` in an open call of one of these names, or in a new one. Raises CallRefused."""
        keys = [(sip.account, sip.peer, rule, name) for name in names]
        shared = self.find(*keys)
        if shared is None:
            shared = self.add(open_call(), *keys)
            leg = spec.leg
        else:
            leg = self._take_leg(shared, spec)
            self.name(shared, *keys)
            log.info("a SIP call has joined another", call_id=shared.call.id, leg=leg, external_id=sip.call_id)
        seat = shared.seats[leg] = Seat(sip, shared.call, leg)
        return seat

    def _take_leg(self, shared: SharedCall[Seat], spec: LegSpec) -> str:
        """Open another leg, or take one whose SIP call has ended and that has the same speaker. Raises CallRefused."""
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
        """The SIP call has ended, and the call with it if it was the last."""
        self.leave(seat.call, [seat.leg], seat, reason)
        seat.call.left(seat.leg)
