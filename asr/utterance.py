"""What is said and what was heard: the two values that cross the border of this package."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Format = Literal["PCMU", "PCMA", "L16"]
BYTES_PER_S: dict[Format, int] = {"PCMU": 8000, "PCMA": 8000, "L16": 32000}
"""PCMU and PCMA: one code per sample at 8 kHz. L16: little-endian int16 at 16 kHz."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """Speech of one leg or file between two pauses; its audio is appended while it is spoken."""

    id: str
    """Unique among the open utterances."""
    format: Format
    language: str = ""
    """ISO 639 code to force; empty: the engine detects."""
    context: str = ""
    """Words the engine may expect: names, products. Engines without biasing ignore it."""
    live: bool = True
    """A person is waiting. Otherwise everything it asks for goes into the batch lane."""
    previous: str = ""
    """The last final of the same leg or file: refused when it is only repeated in silence."""
    stream: str = ""
    """The job it belongs to: batch takes turns between streams."""
    synchronous: bool = False
    """Batch with a client waiting on its HTTP request: goes before the other jobs."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What an engine makes of an utterance so far, as the answer to the request with this `revision`."""

    utterance_id: str
    revision: int
    text: str
    language: str
    """ISO 639 code; empty when no language was recognised."""
    stable_chars: int
    """Code points at the start of `text`, up to a word boundary, equal to those of the previous hypothesis. While the
    engine agrees with itself the number grows; when it changes its mind about an early word it falls, so a reader
    repaints from `stable_chars` on and may not store what precedes it. Of a final: the whole text."""
    final: bool
    error: str | None = None
    """Why a final has no text: the engine failed on this utterance."""
    queue_s: float = 0.0
    """How long the request waited before the engine began with it."""


class EngineState(StrEnum):
    """Of the inference process."""

    IDLE = "idle"
    WARMING_UP = "warming_up"
    READY = "ready"
    FAILED = "failed"
