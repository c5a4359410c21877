"""Who takes the calls of a SIP endpoint, and what the endpoint counts."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Protocol

from config.metrics.counters import counter, counter_by
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

    invites: int = counter("Counts INVITEs received.")
    answered: int = counter("Counts SIP calls answered.")
    failed: int = counter("Counts SIP calls that failed after they had been accepted.")
    cancelled: int = counter("Counts SIP calls that the caller cancelled.")
    media_timeouts: int = counter("Counts SIP calls that were ended because no RTP came.")
    peers_asked: int = counter(
        "Counts OPTIONS requests sent within calls to peers that were silent or had lost their connection."
    )
    peers_lost: int = counter(
        "Counts SIP calls that were ended because the peer did not answer OPTIONS or did not know the call."
    )
    sdp_mismatches: int = counter("Counts SIP calls that were ended because the SDP that was sent was not ours.")
    recordings: int = counter("Counts SIPREC sessions answered.")
    metadata_errors: int = counter("Counts SIPREC metadata documents that could not be parsed.")
    registrations_ok: int = counter("Counts SIP registrations and refreshes that succeeded.")
    registrations_failed: int = counter("Counts SIP registrations that failed.")
    refused: collections.Counter[int] = counter_by("status", "Counts refused SIP calls by status.")
    """Counts by SIP status."""
