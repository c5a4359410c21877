"""Utterance and hypothesis: the two values that cross the border of this package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

MAX_TEXT = 16_384
"""Code points in the text of an utterance, and words: thirty seconds of the fastest speech have a tenth of that. Nobody
has to store what an engine server writes instead."""
MAX_LANGUAGES = 200
Languages = Annotated[tuple[tuple[Annotated[str, Meta(max_length=64)], float], ...], Meta(max_length=MAX_LANGUAGES)]
"""ISO 639 codes of the languages that somebody may be speaking, and how likely each is."""
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
    """ISO 639 code to force, at the engine one of its own; empty: the engine detects."""
    context: str = ""
    """Words the engine may expect: names, products. Engines without biasing ignore it."""
    live: bool = True
    """A person is waiting. Otherwise everything it asks for goes into the batch lane."""
    previous: str = ""
    """The last final of the same leg or file: refused when it is only repeated in silence."""
    heard: Languages = ()
    """What the latest final of the same leg or file has shown of its language (`Hypothesis.heard`)."""
    stream: str = ""
    """The leg or the job it belongs to: of several inference processes a leg has one, and files take turns."""
    synchronous: bool = False
    """Batch with a client waiting on its HTTP request: goes before the other jobs."""
    words: bool = False
    """Times of its words may be asked for: it is not over with a committed final that has words to say, but when it
    has been aligned or closed."""
    source: str = ""
    """The worker that it comes from, at an engine server that several share: they take turns where requests wait."""
    traceparent: str = ""
    """Its span, as W3C Trace Context writes it; empty: it is not traced. The engine makes nothing of it."""

    def sayable(self) -> Utterance:
        """Without lone surrogates, which a peer's bytes that are no UTF-8 become: they cannot be sent to the engine."""
        fields = (self.language, self.context, self.previous)
        language, context, previous = (field.encode("utf-8", "replace").decode() for field in fields)
        return replace(self, language=language, context=context, previous=previous)


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word of a final and its time."""

    word: Annotated[str, Meta(max_length=MAX_TEXT)]
    """The word as it stands in the text, without punctuation around it."""
    start_ms: int
    """Milliseconds from the utterance's first byte of audio."""
    end_ms: int
    confidence: float
    """From 0 to 1: the probability of the less certain of the two times with Qwen's aligner, of the word with
    Whisper."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The text of an utterance so far, as the engine's answer to the request with this `revision`."""

    utterance_id: str
    revision: int
    text: Annotated[str, Meta(max_length=MAX_TEXT)]
    language: Annotated[str, Meta(max_length=64)]
    """ISO 639 code; empty when no language was recognised."""
    stable_chars: int
    """Code points at the start of `text`, up to a word boundary, equal to those of the previous hypothesis. While the
    engine agrees with itself the number grows; when it changes its mind about an early word it falls, and the final may
    have other words there (docs/measurements/performance.md), so a reader repaints from `stable_chars` on and may not
    store what precedes it. Of a final: the whole text."""
    final: bool
    error: str | None = None
    """The reason why a final has no text: the engine failed on this utterance."""
    queue_s: float = 0.0
    """The seconds that the request waited before the engine began with it."""
    died: bool = False
    """The inference process ended over it and others, and which of them was to blame is not known: asked for alone, it
    may go well."""
    refused: bool = False
    """Nothing was tried, and nothing is wrong with the engine: it does not know the language of the utterance, or
    accepts less audio."""
    words: Annotated[tuple[TimedWord, ...], Meta(max_length=MAX_TEXT)] = ()
    """The words of a final with their times, if `Utterance.words` asks for them and the engine has them."""
    heard: Languages = ()
    """What the leg's or file's utterances so far have shown of its language, for the next one (`Utterance.heard`).
    Empty from an engine that does not need it."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The words of an utterance's final in their order with their times; no words when these could not be found."""

    utterance_id: str
    revision: int
    words: Annotated[tuple[TimedWord, ...], Meta(max_length=MAX_TEXT)]
    error: str | None = None
    """The reason why there are no words."""
    queue_s: float = 0.0
    """The seconds that the alignment waited before the aligner began with it."""
    died: bool = False
    """See `Hypothesis.died`."""
    refused: bool = False
    """Nothing was tried: too much was waiting."""


class EngineStatus(StrEnum):
    """The state of the inference process, as readiness and events report it."""

    IDLE = "idle"
    WARMING_UP = "warming_up"
    READY = "ready"
    FAILED = "failed"
