"""How much the engine does at once, and how much it keeps, by what its device has room for."""

from __future__ import annotations

from dataclasses import dataclass

from config.settings import Qwen

SHARE = 0.5
"""This share of the memory that is free once the model is loaded is for keys and values. The rest is for a second model
or the aligner, for graphs, and for the work space of a forward."""
MOST_REQUESTS = 128
"""The most requests in a step. With more it takes longer than a partial may, and the host, which prepares each, limits
the engine."""
SHARE_OF_A_HOST, ON_A_CPU, LEAST_ON_A_CPU = 1 / 16, 32, 4
"""A CPU follows few people with a large model, and many with a small one, whose keys and values are small."""
PARTIAL = 80
"""Positions of a partial, rounded up from 75: 5 s of audio, the prompt around it and the draft."""
CAPTURED = 2048


@dataclass(frozen=True, slots=True)
class Sizes:
    slots: int
    """Utterances of full length whose keys and values are kept."""
    batch: int
    captured_positions: int
    """A step of `batch` partials fits in."""


def sizes(free_bytes: int, slot_bytes: int, settings: Qwen, *, cpu: bool) -> Sizes:
    """`free_bytes`: of the device, or of the host for each of its processes, with the model loaded. `slot_bytes`: keys
    and values of an utterance of full length."""
    slots, batch = settings.slots, settings.batch
    if not slots and cpu:
        slots = max(LEAST_ON_A_CPU, min(ON_A_CPU, int(SHARE_OF_A_HOST * free_bytes / slot_bytes)), batch)
    elif not slots:
        slots = max(_round(int(SHARE * free_bytes / slot_bytes) - 1), batch)
    if not batch:
        batch = min(slots, ON_A_CPU) if cpu or slots <= ON_A_CPU else min(MOST_REQUESTS, _round(slots // 2))
    return Sizes(slots, batch, max(CAPTURED, PARTIAL * batch))


def _round(count: int) -> int:
    """A multiple of 8, at least 8."""
    return max(8, count // 8 * 8)
