"""Talk times of the legs, computed from the speech segments of all legs, and the times of words on that timeline.

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
    """Each leg's share of the sum of `talk_ms`; zeros before the first speech."""


@dataclass(slots=True)
class Sums:
    """Sums over the segments of one or more time spans. A segment that lies in two spans may be cut between them."""

    talk_ms: dict[str, int] = field(default_factory=dict)
    overtalk_ms: int = 0
    voiced_ms: int = 0

    def add(self, segments: Mapping[str, Iterable[Segment]]) -> None:
        """Add the segments of one more time span, by leg."""
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
    """Remove the parts of segments that lie before `at_ms` from the list, and return them."""
    removed = [(start, min(end, at_ms)) for start, end in segments if start < at_ms]
    segments[:] = [(max(start, at_ms), end) for start, end in segments if end > at_ms]
    return removed


def totals(
    segments: Mapping[str, Iterable[Segment]], duration_ms: int, hold_ms: int = 0, past: Sums | None = None
) -> Talk:
    """Return the totals of `past` and `segments`. Time on hold is neither talk nor silence."""
    sums = Sums() if past is None else Sums(dict(past.talk_ms), past.overtalk_ms, past.voiced_ms)
    sums.add(segments)
    spoken = sum(sums.talk_ms.values())
    ratio = {leg: round(ms / spoken, 3) if spoken else 0.0 for leg, ms in sums.talk_ms.items()}
    return Talk(sums.talk_ms, sums.overtalk_ms, max(0, duration_ms - sums.voiced_ms - hold_ms), ratio)


def placed(words: Iterable[TimedWord], audio_ms: int, start_ms: int, end_ms: int) -> list[Word]:
    """Return the words of an utterance whose audio begins at `audio_ms`, with times clamped to its start and end.

    The model may place a word in the silence that surrounds the speech.
    """

    def within(ms: int) -> int:
        return min(max(audio_ms + ms, start_ms), max(start_ms, end_ms))

    return [Word(each.word, within(each.start_ms), within(each.end_ms), each.confidence) for each in words]
