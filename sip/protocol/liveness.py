"""Whether the peer of a call is still there, when nothing comes from it. No I/O; times are the loop's clock.

A peer that dies sends no BYE. One that sends no RTP may as well hold, or record silence, so it is asked: by an OPTIONS
within the dialog, which every living peer answers somehow. One that has lost the call says 481 (RFC 3261 section
12.2.1.2).
"""

from __future__ import annotations

import ipaddress
from enum import Enum

ANSWER_S = 16.0
"""An OPTIONS that is lost is sent again seven times by then (RFC 3261 section 17.1.2.2)."""
DOUBT_S = 1.0
"""A peer that is asked because of a doubt must have sent nothing for this long."""
DOUBT_EVERY_S = 10.0
"""A doubt brings no more questions than one in this time."""
REFUSED_S = 3.0
"""A peer that cannot be reached may take this long to show by its RTP that it lives."""

UNREACHED = frozenset((408, 430, 477, 502, 504))
"""Answers of a proxy on the way that did not reach the peer. 430: RFC 5626 section 11; 477 is Kamailio's."""
UNKNOWN_CALL = 481


class Step(Enum):
    WAIT = "wait"
    ASK = "ask"
    GIVE_UP = "give up"


class PeerWatch:
    """When to ask the peer of one call, and when to give it up."""

    __slots__ = ("_alive_s", "_asked_s", "_doubted", "_pending", "_refused", "_silence_s")

    def __init__(self, now: float, silence_s: float) -> None:
        """`silence_s`: without RTP for so long the peer is asked, and as often again while it stays silent."""
        self._silence_s = silence_s
        self._alive_s = now
        """When it was last known to live by anything but RTP."""
        self._asked_s = float("-inf")
        self._pending = self._refused = self._doubted = False

    def doubt(self) -> None:
        """Something says that it may be gone: its connection has ended, or its host takes no RTP."""
        self._doubted = True

    def on_question(self, now: float) -> None:
        self._asked_s, self._pending, self._refused, self._doubted = now, True, False, False

    def on_answer(self, now: float) -> None:
        self._alive_s, self._pending = now, False

    def on_unreached(self) -> None:
        """The question could not be sent, or did not reach it."""
        self._refused = True

    def step(self, now: float, received_s: float) -> Step:
        """The step to take now. `received_s`: when its last RTP packet came."""
        if self._pending:
            if received_s > self._asked_s:
                self.on_answer(now)
                return Step.WAIT
            limit_s = REFUSED_S if self._refused else ANSWER_S
            return Step.GIVE_UP if now - self._asked_s >= limit_s else Step.WAIT
        quiet = now - max(received_s, self._alive_s) >= self._silence_s
        doubted = self._doubted and now - received_s >= DOUBT_S and now - self._asked_s >= DOUBT_EVERY_S
        return Step.ASK if quiet or doubted else Step.WAIT


def is_behind_nat(contact_host: str, source: str) -> bool:
    """Whether a Contact names a private address that requests cannot be sent to: the peer's come from a public one."""
    try:
        contact, seen = ipaddress.ip_address(contact_host), ipaddress.ip_address(source)
    except ValueError:
        return False
    return contact != seen and contact.is_private and not contact.is_loopback and not seen.is_private
