"""The detections that a leg's audio gives. Positions are 8 kHz samples since the leg's sample 0; intervals are
half-open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from audio.legs.leg import Leg

EndReason = Literal["endpoint", "max_length", "hangup", "flush", "shutdown"]


@dataclass(frozen=True, slots=True)
class SpeechOnset:
    """An utterance is certain; exactly one `SpeechOffset` of the same leg follows."""

    leg: Leg
    start: int
    """The first voiced position."""
    audio_start: int
    """`start` less the pre-roll, never before the end of the utterance before: recognise from here."""
    cut_from: int
    """If the utterance is cut for its length, it is cut no earlier: what follows may belong to the next one."""


@dataclass(frozen=True, slots=True)
class SpeechPaused:
    """`speculate_ms` of silence have passed since `end`: if nothing more comes, the utterance was this."""

    leg: Leg
    end: int


@dataclass(frozen=True, slots=True)
class SpeechResumed:
    """Speech after a `SpeechPaused`: the utterance goes on."""

    leg: Leg


@dataclass(frozen=True, slots=True)
class SpeechOffset:
    leg: Leg
    start: int
    end: int
    """Where the last voiced window ended, or the quietest spot at `max_length`."""
    audio_end: int
    """`end + speculate_ms` for an utterance that a pause ended, never beyond what has been consumed."""
    reason: EndReason


@dataclass(frozen=True, slots=True)
class Digit:
    """One DTMF digit of RFC 4733, however often its packets were repeated."""

    leg: Leg
    position: int
    digit: str
    duration_ms: int


Detection = SpeechOnset | SpeechPaused | SpeechResumed | SpeechOffset | Digit
