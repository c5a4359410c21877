"""The liveness check of a silent call's peer. No I/O; times are by the loop's clock.

A peer that dies sends no BYE. One that sends no RTP may as well hold, or record silence. So it gets an OPTIONS within
the dialog, to which every living peer responds somehow. A peer that has lost the call responds with 481 (RFC 3261
section 12.2.1.2).
"""

from __future__ import annotations

import ipaddress
from enum import Enum

ANSWER_S = 16.0
"""The timeout for the response. A lost OPTIONS is retransmitted seven times within it (RFC 3261 section 17.1.2.2)."""
DOUBT_S = 1.0
"""The silence before a peer is asked because of a doubt."""
DOUBT_EVERY_S = 10.0
"""The shortest interval of requests because of doubts."""
REFUSED_S = 3.0
"""The time that a peer which cannot be reached has to show by its RTP that it is alive."""

UNREACHED = frozenset((408, 430, 477, 502, 504))
"""The statuses of a proxy that did not reach the peer. 430 is from RFC 5626 section 11, and 477 is Kamailio's."""
UNKNOWN_CALL = 481


class Step(Enum):
    WAIT = "wait"
    ASK = "ask"
    GIVE_UP = "give up"


class PeerWatch:
    """Decides when to ask the peer of one call, and when to give it up."""

    __slots__ = ("_alive_s", "_asked_s", "_doubted", "_pending", "_refused", "_silence_s")

    def __init__(self, now: float, silence_s: float) -> None:
        """`silence_s`: the time without RTP after which the peer is asked, and the interval while it stays silent."""
        self._silence_s = silence_s
        self._alive_s = now
        """When the peer last showed that it is alive by anything but RTP."""
        self._asked_s = float("-inf")
        self._pending = self._refused = self._doubted = False

    def doubt(self) -> None:
        """Note a sign that the peer may be gone: its connection has ended, or its host refuses RTP."""
        self._doubted = True

    def on_question(self, now: float) -> None:
        self._asked_s, self._pending, self._refused, self._doubted = now, True, False, False

    def on_answer(self, now: float) -> None:
        self._alive_s, self._pending = now, False

    def on_unreached(self) -> None:
        """Note that the OPTIONS could not be sent, or did not reach the peer."""
        self._refused = True

    def step(self, now: float, received_s: float) -> Step:
        """The step to take now. `received_s`: when the last RTP packet arrived."""
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
    """Whether a Contact has a private address that cannot be reached, since the peer sends from a public one."""
    try:
        contact, seen = ipaddress.ip_address(contact_host), ipaddress.ip_address(source)
    except ValueError:
        return False
    return contact != seen and contact.is_private and not contact.is_loopback and not seen.is_private
