"""One request to the engine, and the lane in which it waits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Lane(IntEnum):
    FINAL = 0
    FIRST_PARTIAL = 1
    PARTIAL = 2
    SPECULATIVE = 3
    """Finals of utterances that may go on."""
    WORDS = 4
    """Times of the words of a call's finals. Those of files wait in the batch lane."""
    BATCH = 5


LIVE = (Lane.FINAL, Lane.FIRST_PARTIAL, Lane.PARTIAL, Lane.SPECULATIVE)


@dataclass(frozen=True, slots=True)
class Request:
    """One answer wanted. `end` is the byte offset of the utterance's audio up to which the answer may hear."""

    utterance_id: str
    revision: int
    lane: Lane
    final: bool
    end: int
    deadline_s: float
    stream: str = ""
    synchronous: bool = False
    commit: bool = False
    """A final after which the utterance is over."""
    align: bool = False
    """Not a hypothesis: the times of its final's words."""
    source: str = ""
    """See `asr.utterance.Utterance`."""
