"""The due time of a leg's next windows, at which a missing window becomes silence.

A complete window is due at once. The due time of missing windows moves with the position: each position waits 1/8000 s
longer than the previous one. So a single number per leg is enough: `base_s`, the time at which a window that ended at
position 0 would be given up. With it the detector finds the due windows of all legs in one comparison.
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
        """`jitter_s`: how long a window waits for missing audio once later audio has arrived."""
        self._transport, self._jitter_s, self.place = transport, jitter_s, place
        self._timeline, self._clock, self._chunks = timeline, clock, chunks
        self.stall_s = self._patience_s = stall_s
        """How long a stream may send nothing before it continues as silence; infinity waits for its next chunk."""

    def wait(self, *, endless: bool) -> None:
        """Set `stall_s`, from the next chunk on, to infinity (`endless`) or to its original value."""
        self.stall_s = NEVER if endless else self._patience_s

    def update(self) -> None:
        """Recompute the due time, after audio has arrived or been given up."""
        timeline, chunks = self._timeline, self._chunks
        overtaken = bool(timeline.gaps) and timeline.gaps[0][0] < timeline.begin
        if overtaken and chunks.arrival_s >= chunks.begun_s + self._jitter_s:
            # The arrival of a chunk decides this, not the clock, so that no window is given up while it is arriving.
            timeline.give_up(timeline.begin)
            overtaken = False
        self._received = timeline.received
        if self._transport == "rtp":
            # Each window waits for `jitter_s` after the wall clock has passed its end. If it were counted from
            # arrivals, each stall would make all later windows wait longer.
            assert self._clock.origin_s is not None
            self._give_up(0, self._clock.origin_s + self._jitter_s)
        elif timeline.gaps and not overtaken:
            # A later chunk shows the loss, but an overtaken one may still arrive within `jitter_s`.
            chunks.gap_s = chunks.arrival_s if chunks.gap_s is None else chunks.gap_s
            stop = (timeline.received // WINDOW + 1) * WINDOW
            self._give_up(stop, chunks.gap_s + self._jitter_s)
        else:
            chunks.gap_s = None
            self._give_up(max(timeline.end, self._consumed), chunks.arrival_s + self.stall_s)

    def _give_up(self, stop: int, at_s: float) -> None:
        """Let a window that ends at `stop` become silence at `at_s`."""
        self._base_s = at_s - stop / RATE_HZ
