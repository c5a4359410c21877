"""How long each leg talked, from the speech segments of all legs, and when each word was said.

Times are milliseconds of the call, or of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mediaworker.events.schema import Word

if TYPE_CHECKING:
    from asr.utterance import TimedWord

Segment = tuple[int, int]
"""(start_ms, end_ms), end exclusive."""


@dataclass(frozen=True, slots=True)
class Talk:
    talk_ms: dict[str, int]
    overtalk_ms: int
    silence_ms: int
    talk_ratio: dict[str, float]
    """A leg's share of all talking; zeros while nobody has spoken."""


@dataclass(slots=True)
class Sums:
    """Sums of segments. Segments of another time span may be added; one segment may be cut between two spans."""

    talk_ms: dict[str, int] = field(default_factory=dict)
    overtalk_ms: int = 0
    voiced_ms: int = 0

    def add(self, segments: Mapping[str, Iterable[Segment]]) -> None:
        """Sweep over the segments of every leg."""
        for leg, spans in segments.items():
            self.talk_ms[leg] = self.talk_ms.get(leg, 0) + sum(end - start for start, end in spans)
        edges = sorted(edge for spans in segments.values() for start, end in spans for edge in ((start, 1), (end, -1)))
        speaking = previous = 0
        for at, step in edges:
            if speaking:
                self.voiced_ms += at - previous
            if speaking > 1:
                self.overtalk_ms += at - previous
            speaking += step
            previous = at


def take_before(segments: list[Segment], at_ms: int) -> list[Segment]:
    """Remove what lies before `at_ms`, and return it."""
    taken = [(start, min(end, at_ms)) for start, end in segments if start < at_ms]
    segments[:] = [(max(start, at_ms), end) for start, end in segments if end > at_ms]
    return taken


def totals(
    segments: Mapping[str, Iterable[Segment]], duration_ms: int, hold_ms: int = 0, past: Sums | None = None
) -> Talk:
    """The totals of `past` and `segments`. Hold is neither talk nor silence."""
    sums = Sums() if past is None else Sums(dict(past.talk_ms), past.overtalk_ms, past.voiced_ms)
    sums.add(segments)
    spoken = sum(sums.talk_ms.values())
    ratio = {leg: round(ms / spoken, 3) if spoken else 0.0 for leg, ms in sums.talk_ms.items()}
    return Talk(sums.talk_ms, sums.overtalk_ms, max(0, duration_ms - sums.voiced_ms - hold_ms), ratio)


def placed(words: Iterable[TimedWord], audio_ms: int, start_ms: int, end_ms: int) -> list[Word]:
    """Words of an utterance whose audio begins at `audio_ms`. The model may hear one in the silence around the speech;
    it was spoken between start and end."""

    def within(ms: int) -> int:
        return min(max(audio_ms + ms, start_ms), max(start_ms, end_ms))

    return [Word(each.word, within(each.start_ms), within(each.end_ms), each.confidence) for each in words]
