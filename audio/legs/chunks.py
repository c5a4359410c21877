"""Where the chunks of a stream transport belong: stated positions → positions of the leg.

On TCP nothing is lost on the way, but a client may leave something out, send out of order, or round its positions to
milliseconds (Twilio). A chunk that says roughly where the audio before it ended follows it; one that says it is further
on leaves a gap of a whole number of chunks, into which exactly those that were overtaken fall. Before the first chunk
there is room for those that it has overtaken.
"""

from __future__ import annotations

from audio.legs.timeline import LegTimeline

SNAP = 240
"""30 ms: the most by which a stated position is corrected; for short chunks half their length."""
REACH = 800
"""100 ms: how far the first chunk may have overtaken others."""
ADOPT = 40
"""5 ms: when stated positions are off by this much on average, a silent leg is moved there."""


class ChunkClock:
    __slots__ = ("_deviation", "arrival_s", "begun_s", "gap_s", "packets")

    def __init__(self) -> None:
        self.packets = 0
        """The number of chunks."""
        self.arrival_s = 0.0
        """When the latest chunk came."""
        self.begun_s = 0.0
        """When the first chunk came."""
        self.gap_s: float | None = None
        """When the earliest open gap was seen."""
        self._deviation = 0.0

    @property
    def exact(self) -> bool:
        """Chunks have come, and where each said the one before had ended."""
        return self.packets > 0 and self._deviation == 0.0

    def place(self, position: int, size: int, timeline: LegTimeline, *, silent: bool) -> int:
        """Where a chunk of `size` positions that says `position` starts; `silent`: the leg is, so it may be moved."""
        if not self.packets:
            return position
        deviation, near = position - timeline.end, min(SNAP, size // 2)
        if deviation < -near:
            for low, high in timeline.gaps:
                if low - near <= position < high:
                    # Counted from the chunk that has overtaken it: the gap's other end may have been given up.
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
