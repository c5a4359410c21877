"""Counters of a SIP endpoint, for `/metrics`."""

from __future__ import annotations

import collections
from dataclasses import dataclass

from config.metrics.counters import counter, counter_by


@dataclass(slots=True)
class SipCounters:
    """The totals of the endpoint, for metrics."""

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
    """SIP status → the number of calls refused with it."""
