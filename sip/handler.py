"""Who takes the calls of a SIP endpoint, and what the endpoint counts."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Protocol

from config.counters import counter, counter_by
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

    invites: int = counter("INVITEs received")
    answered: int = counter("Calls answered")
    failed: int = counter("Calls that failed after being accepted")
    cancelled: int = counter("Calls cancelled by the caller")
    media_timeouts: int = counter("Calls ended for lack of RTP")
    peers_asked: int = counter("OPTIONS within calls, sent to peers that were silent or had lost their connection")
    peers_lost: int = counter("Calls ended because the peer did not answer OPTIONS, or did not know the call")
    sdp_mismatches: int = counter("Calls ended because the SDP that went out was not ours")
    recordings: int = counter("SIPREC sessions answered")
    metadata_errors: int = counter("SIPREC metadata that could not be read")
    registrations_ok: int = counter("Registrations and refreshes that succeeded")
    registrations_failed: int = counter("Registrations that failed")
    refused: collections.Counter[int] = counter_by("status", "Calls refused by status")
    """By SIP status."""
