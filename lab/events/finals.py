"""A final of the transcript, as an event."""

from __future__ import annotations

from typing import Any

from mediaworker.events import schema as events


def final(text: str, number: int = 1, *, leg: str = "main", start_ms: int = 0, end_ms: int = 1000) -> Any:
    return events.TranscriptFinal(
        leg=leg, role="customer", utterance_id=f"u{number}", revision=9, start_ms=start_ms, end_ms=end_ms, text=text,
        stable_chars=len(text), language="en", lost_ms=0, latency_ms=5, reason="endpoint",
    )  # fmt: skip
