"""Who takes the calls of a SIP endpoint, and what the endpoint counts."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Protocol

from sip.pjsip.call import SipCall


class SipHandler(Protocol):
    """Who takes the calls. All methods are called on the loop's thread and must not block."""

    def on_call(self, call: SipCall) -> None:
        """An INVITE is about to be answered: `call.streams` is negotiated; set each `socket.leg` now."""

    def on_media(self, call: SipCall) -> None:
        """A re-INVITE changed codec, address or direction: `call.streams` and `call.held` are new."""

    def on_metadata(self, call: SipCall) -> None:
        """A recording client says something new: `call.recording`."""

    def on_dtmf(self, call: SipCall, digit: str, duration_ms: int) -> None:
        """A digit by SIP INFO; those in RTP (RFC 4733) are in the stream."""

    def on_end(self, call: SipCall, reason: str) -> None:
        """hangup | cancelled | local | failed | timeout | media_timeout. The sockets close when this returns.

        `timeout`: the peer did not acknowledge the answer, did not refresh the session, or was silent and did not say
        that it still has the call.
        """

    def can_accept(self) -> int:
        """0, or the SIP status to refuse a call with."""


@dataclass(slots=True)
class SipCounters:
    """Plain totals, for metrics."""

    invites: int = 0
    answered: int = 0
    failed: int = 0
    """Calls that were accepted here and ended with reason `failed` or `timeout`."""
    cancelled: int = 0
    media_timeouts: int = 0
    peers_asked: int = 0
    """OPTIONS within calls whose peers were silent, or lost their connection."""
    peers_lost: int = 0
    """Calls that were ended because the peer did not answer that, or did not know the call."""
    sdp_mismatches: int = 0
    recordings: int = 0
    """SIPREC sessions that were answered."""
    metadata_errors: int = 0
    """SIPREC metadata that could not be read; the session went on with what was known."""
    registrations_ok: int = 0
    registrations_failed: int = 0
    refused: collections.Counter[int] = field(default_factory=collections.Counter)
    """By SIP status."""
