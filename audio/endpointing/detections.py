"""The detections in a leg's audio. Positions are 8 kHz samples since the leg's sample 0; intervals are half-open."""

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
    """The position from which to recognise: `start` less the pre-roll, but not before the previous utterance's end."""
    cut_from: int
    """The earliest position at which the utterance may be cut for its length; audio after it may belong to the next
    utterance."""


@dataclass(frozen=True, slots=True)
class SpeechPaused:
    """`speculate_ms` of silence have passed since `end`: if no more speech follows, the utterance is complete."""

    leg: Leg
    end: int


@dataclass(frozen=True, slots=True)
class SpeechResumed:
    """Speech follows a `SpeechPaused`: the utterance goes on."""

    leg: Leg


@dataclass(frozen=True, slots=True)
class SpeechOffset:
    leg: Leg
    start: int
    end: int
    """The end of the last voiced window; for `max_length` the quietest spot."""
    audio_end: int
    """The end of the audio to recognise: `end + speculate_ms` after a pause, but not beyond the consumed audio."""
    reason: EndReason


@dataclass(frozen=True, slots=True)
class Digit:
    """One DTMF digit of RFC 4733, which is reported once for all its packets."""

    leg: Leg
    position: int
    digit: str
    duration_ms: int


Detection = SpeechOnset | SpeechPaused | SpeechResumed | SpeechOffset | Digit
