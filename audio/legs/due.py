"""When a missing window stops being waited for: the due time of a leg's next windows.

What has come completely is due at once. What is missing goes on as silence from a time on that moves with the position:
one position later is waited for 1/8000 s longer. So one number says it for all windows, and the detector finds the due
ones of all legs in one comparison: `base_s`, the time at which a window that ended at position 0 would be given up.
"""

from __future__ import annotations

from typing import Literal

from audio.leg_table import NEVER, Cell, LegRow
from audio.legs.chunks import ChunkClock
from audio.legs.timeline import LegTimeline
from audio.ring import WINDOW
from audio.rtp.clock import RATE_HZ, RtpClock

Transport = Literal["rtp", "stream"]


class DueTime:
    """Keeps `received` and `base_s` of a leg's row up to date. Until the first `update` the leg waits for ever."""

    __slots__ = ("_chunks", "_clock", "_jitter_s", "_patience_s", "_timeline", "_transport", "place", "stall_s")

    _consumed = Cell[int]("consumed")
    _received = Cell[int]("received")
    _base_s = Cell[float]("base_s")

    def __init__(
        self, transport: Transport, timeline: LegTimeline, clock: RtpClock, chunks: ChunkClock, place: LegRow,
        jitter_s: float, stall_s: float,
    ) -> None:  # fmt: skip
        """`jitter_s`: how long a window waits for what is missing of it once later audio has come."""
        self._transport, self._jitter_s, self.place = transport, jitter_s, place
        self._timeline, self._clock, self._chunks = timeline, clock, chunks
        self.stall_s = self._patience_s = stall_s
        """How long a stream that sends nothing is waited for; infinity: until its next chunk."""

    def wait(self, *, endless: bool) -> None:
        """Wait, from the next chunk on, for a stream that sends nothing without end, or as long as at the beginning."""
        self.stall_s = NEVER if endless else self._patience_s

    def update(self) -> None:
        """Something has come, or has been given up."""
        timeline, chunks = self._timeline, self._chunks
        overtaken = bool(timeline.gaps) and timeline.gaps[0][0] < timeline.begin
        if overtaken and chunks.arrival_s >= chunks.begun_s + self._jitter_s:
            # The next chunk says so, not the clock: a window is not torn from what is still to come of it.
            timeline.give_up(timeline.begin)
            overtaken = False
        self._received = timeline.received
        if self._transport == "rtp":
            # Each window has the reorder wait, counted from when the wall clock is at its end. Counted from arrivals,
            # each stall would make all later windows wait longer.
            assert self._clock.origin_s is not None
            self._give_up(0, self._clock.origin_s + self._jitter_s)
        elif timeline.gaps and not overtaken:
            # A later chunk shows the loss; one that was overtaken may still come within the reorder wait.
            chunks.gap_s = chunks.arrival_s if chunks.gap_s is None else chunks.gap_s
            stop = (timeline.received // WINDOW + 1) * WINDOW
            self._give_up(stop, chunks.gap_s + self._jitter_s)
        else:
            chunks.gap_s = None
            self._give_up(max(timeline.end, self._consumed), chunks.arrival_s + self.stall_s)

    def _give_up(self, stop: int, at_s: float) -> None:
        """A window that ends at `stop` goes on as silence at `at_s`."""
        self._base_s = at_s - stop / RATE_HZ
