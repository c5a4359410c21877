"""Calls that Asterisk places, and their events."""

from __future__ import annotations

from typing import Any

from lab.asterisk.pbx import Asterisk
from lab.patience import until
from lab.worker.peers import Worker


def heard(asterisk: Asterisk, listening: Worker, peer: str, say: str, context: str = "dial") -> list[dict[str, Any]]:
    """The events of a call from Asterisk that says something and hangs up."""
    known = {call["call_id"] for call in listening.calls()}
    asterisk.call(peer, say, context)
    call = until(
        lambda: next((c for c in listening.calls() if c["call_id"] not in known and c["ended_at"]), None),
        100,
        f"a call to {peer}",
    )
    return listening.events(call["call_id"])
