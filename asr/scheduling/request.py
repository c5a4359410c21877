"""A request to the engine, and the lanes in which requests wait."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Lane(IntEnum):
    """The kinds of requests in order of precedence."""

    FINAL = 0
    FIRST_PARTIAL = 1
    PARTIAL = 2
    SPECULATIVE = 3
    """Finals of utterances that may still go on."""
    WORDS = 4
    """Word timestamps of a call's finals. Those of files wait in the batch lane."""
    BATCH = 5


LIVE = (Lane.FINAL, Lane.FIRST_PARTIAL, Lane.PARTIAL, Lane.SPECULATIVE)


@dataclass(frozen=True, slots=True)
class Request:
    """One request for an answer."""

    utterance_id: str
    revision: int
    lane: Lane
    final: bool
    end: int
    """The byte offset in the utterance's audio up to which the engine may use it for this answer."""
    deadline_s: float
    """When the answer is late. It only orders requests within a lane; see `asr.scheduling.scheduler`."""
    stream: str = ""
    synchronous: bool = False
    commit: bool = False
    """Whether it is a final that ends the utterance."""
    align: bool = False
    """Whether it asks for the word timestamps of the final, and not for a hypothesis."""
    source: str = ""
    """See `asr.utterance.Utterance`."""
