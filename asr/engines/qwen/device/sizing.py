"""How much the engine does at once, and how much it keeps, by what its device has room for."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.5
"""Of the memory that is free once the model is loaded: for keys and values. The rest is for a second model or the
aligner, for graphs and for what a forward needs, of which the copies of keys and values are the most."""
MOST_SLOTS, MOST_REQUESTS = 256, 128
"""With more, a step takes longer than a partial may, and the host, which prepares each, is what limits the engine."""
ON_A_CPU = 32
PARTIAL = 80
"""Positions of a partial, rounded up from 75: 5 s of audio, the prompt around it and the draft."""
CAPTURED = 2048


@dataclass(frozen=True, slots=True)
class Sizes:
    slots: int
    batch: int
    captured_positions: int
    """A step of `batch` partials fits in."""


def sizes(free_bytes: int | None, slot_bytes: int, *, slots: int = 0, batch: int = 0) -> Sizes:
    """`free_bytes`: of the device, with the model on it; None on a CPU. `slots`, `batch`: as they are set, or 0."""
    if not slots:
        slots = ON_A_CPU if free_bytes is None else _round(int(SHARE * free_bytes / slot_bytes) - 1, MOST_SLOTS)
        slots = max(slots, batch)
    if not batch:
        batch = min(slots, ON_A_CPU) if free_bytes is None or slots <= ON_A_CPU else _round(slots // 2, MOST_REQUESTS)
    return Sizes(slots, batch, max(CAPTURED, PARTIAL * batch))


def _round(count: int, most: int) -> int:
    """A multiple of 8, at least 8."""
    return max(8, min(most, count) // 8 * 8)
