"""The placement of a stream transport's chunks: stated positions → positions of the leg.

TCP loses nothing, but a client may omit audio, send out of order, or round its positions to milliseconds (Twilio). A
chunk whose stated position is close to the end of the previous audio follows it directly. One with a later position
leaves a gap of a whole number of chunks, into which overtaken chunks fit exactly. Before the first chunk there is room
for chunks that it has overtaken.
"""

from __future__ import annotations

from audio.legs.timeline import LegTimeline

SNAP = 240
"""The largest correction of a stated position: 30 ms, or half of a shorter chunk."""
REACH = 800
"""How far the first chunk may have overtaken others: 100 ms."""
ADOPT = 40
"""The mean deviation of stated positions at which a silent leg is moved: 5 ms."""


class ChunkClock:
    __slots__ = ("_deviation", "arrival_s", "begun_s", "gap_s", "packets")

    def __init__(self) -> None:
        self.packets = 0
        """The number of chunks."""
        self.arrival_s = 0.0
        """When the latest chunk arrived."""
        self.begun_s = 0.0
        """When the first chunk arrived."""
        self.gap_s: float | None = None
        """When the earliest open gap was seen."""
        self._deviation = 0.0

    @property
    def exact(self) -> bool:
        """Whether there were chunks, and each stated exactly the end of the previous one."""
        return self.packets > 0 and self._deviation == 0.0

    def place(self, position: int, size: int, timeline: LegTimeline, *, silent: bool) -> int:
        """The start of a chunk of `size` positions that states `position`. `silent`: the leg may be moved."""
        if not self.packets:
            return position
        deviation, near = position - timeline.end, min(SNAP, size // 2)
        if deviation < -near:
            for low, high in timeline.gaps:
                if low - near <= position < high:
                    # Count back from the overtaking chunk: the start of the gap may have been given up.
                    back = round((high - position) / size) * size
                    return high - back if abs(high - position - back) <= near else position
            return position
        chunks = round(deviation / size)
        if abs(deviation - chunks * size) > SNAP:
            return position
        if not chunks:
            # Twilio rounds its timestamps to milliseconds. So the audio follows what came before, and only a mean
            # deviation, of a clock that runs differently, moves a leg, while it is silent.
            self._deviation += (deviation - self._deviation) / 16
            if silent and abs(self._deviation) > ADOPT:
                moved, self._deviation = round(self._deviation), 0.0
                return timeline.end + moved
        return timeline.end + chunks * size
