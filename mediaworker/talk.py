"""Who talked how long: totals from the legs' speech segments, in milliseconds of call time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Segment = tuple[int, int]
"""(start_ms, end_ms), end exclusive."""


@dataclass(frozen=True, slots=True)
class Talk:
    talk_ms: dict[str, int]
    overtalk_ms: int
    silence_ms: int
    talk_ratio: dict[str, float]
    """A leg's share of all talking; zeros while nobody has spoken."""


def totals(segments: Mapping[str, Iterable[Segment]], duration_ms: int, hold_ms: int = 0) -> Talk:
    """Sweep over the segments of every leg. Hold is neither talk nor silence."""
    talk_ms = {leg: sum(end - start for start, end in spans) for leg, spans in segments.items()}
    edges = sorted(edge for spans in segments.values() for start, end in spans for edge in ((start, 1), (end, -1)))
    overtalk_ms = voiced_ms = speaking = previous = 0
    for at, step in edges:
        if speaking:
            voiced_ms += at - previous
        if speaking > 1:
            overtalk_ms += at - previous
        speaking += step
        previous = at
    spoken = sum(talk_ms.values())
    ratio = {leg: round(ms / spoken, 3) if spoken else 0.0 for leg, ms in talk_ms.items()}
    return Talk(talk_ms, overtalk_ms, max(0, duration_ms - voiced_ms - hold_ms), ratio)
