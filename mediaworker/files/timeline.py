"""Where decoded frames lie on the timeline of their source: what is missing between two is silence. Pure.

Every frame is there once, in the order in which it was decoded. Its timestamp can only put silence before it:

- containers round timestamps, Matroska to a millisecond: below a tolerance they say nothing;
- a clock that is set back begins anew behind what is there (`cat` of two recordings, MPEG-TS);
- a clock that jumps ahead is not believed before it has gone on from there for a while, nor if that is further than any
  recording lasts: when it comes back (a damaged packet lied), there was no gap;
- a clock that comes back to what it was before it had been set back goes on as before;
- a clock that is slower than its samples leaves no room for them: they follow one another, and a later gap is shorter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
TOLERANCE_S = 0.040
DOUBTED_S = 0.2
"""A longer gap has to be confirmed by what follows."""
CONFIRMED_S = 40.0
"""By so much audio: a Matroska cluster, which has one time for all, lasts 33 s at most."""
CONFIRMED_SAMPLES = 4_000_000
"""Or by so many samples of all channels: they are kept so long."""
LAST_S = 60.0
"""A gap before the last frames of a source, which nothing confirms, is believed up to this length."""
CLOCKS = 4
"""So many earlier clocks are remembered."""


@dataclass(frozen=True, slots=True)
class SourceFrame(Generic[T]):
    frame: T
    time_s: float | None
    """Of its first sample from the start of the source, as it says itself; None: it says nothing."""
    samples: int
    rate_hz: int


class SourceTimeline(Generic[T]):
    """One audio stream. `place` and `finish` yield (silence before it, in samples of the frame's rate; frame).

    Args:
        longest_gap_s: more is no gap.
        channels: of each frame.
    """

    def __init__(self, *, longest_gap_s: float, channels: int = 1) -> None:
        self._longest_gap_s, self._most = longest_gap_s, CONFIRMED_SAMPLES // channels
        self._shift_s = 0.0
        """What the clock is off by."""
        self._shifts_s: deque[float] = deque(maxlen=CLOCKS)
        """Of earlier clocks."""
        self._last_s: float | None = None
        """What the latest frame said."""
        self._held: list[SourceFrame[T]] = []
        """Behind a gap that is doubted."""
        self._held_s, self._held_samples = 0.0, 0
        self.position_s = 0.0
        """End of what has been placed."""
        self.jumps = 0
        """Times that the clock was wrong."""

    def place(self, frame: SourceFrame[T]) -> Iterator[tuple[int, T]]:
        """The frames that are certain by now."""
        if self._held:
            time_s, last = frame.time_s, self._held[-1]
            assert last.time_s is not None
            if time_s is not None and abs(self._off(time_s) - self._held_s) <= DOUBTED_S:
                yield from self._deny()
            elif time_s is None or -TOLERANCE_S <= time_s - last.time_s - last.samples / last.rate_hz <= DOUBTED_S:
                yield from self._hold(frame)
                return
            else:
                yield from self._believe()
        yield from self._place(frame)

    def finish(self) -> Iterator[tuple[int, T]]:
        """The rest."""
        if self._held:
            assert self._held[0].time_s is not None
            yield from self._believe() if self._off(self._held[0].time_s) <= LAST_S else self._deny()

    def _off(self, time_s: float) -> float:
        """How far ahead of what has been placed it lies."""
        return time_s + self._shift_s - self.position_s

    def _place(self, frame: SourceFrame[T]) -> Iterator[tuple[int, T]]:
        off_s = 0.0 if frame.time_s is None else self._follow(frame.time_s)
        if off_s > DOUBTED_S:
            yield from self._hold(frame)
        else:
            yield self._put(frame, off_s)

    def _follow(self, time_s: float) -> float:
        """`_off`, after a jump by the clock that is right from here on."""
        off_s = self._off(time_s)
        set_back = self._last_s is not None and time_s < self._last_s - TOLERANCE_S
        if not set_back and off_s <= TOLERANCE_S:
            return off_s
        for shift_s in self._shifts_s:
            if abs(off_s - self._shift_s + shift_s) <= min(DOUBTED_S, abs(off_s) / 4):
                return self._set(shift_s, time_s)
        if set_back or off_s > self._longest_gap_s:
            return self._set(self._shift_s - off_s, time_s)
        return off_s

    def _set(self, shift_s: float, time_s: float) -> float:
        self.jumps += 1
        self._shifts_s.append(self._shift_s)
        self._shift_s = shift_s
        return self._off(time_s)

    def _put(self, frame: SourceFrame[T], off_s: float) -> tuple[int, T]:
        silence = round(off_s * frame.rate_hz) if off_s > TOLERANCE_S else 0
        self.position_s += (silence + frame.samples) / frame.rate_hz
        if frame.time_s is not None:
            self._last_s = frame.time_s
        return silence, frame.frame

    def _hold(self, frame: SourceFrame[T]) -> Iterator[tuple[int, T]]:
        if frame.time_s is None:
            last = self._held[-1]
            assert last.time_s is not None
            frame = SourceFrame(frame.frame, last.time_s + last.samples / last.rate_hz, frame.samples, frame.rate_hz)
        self._held.append(frame)
        self._held_s += frame.samples / frame.rate_hz
        self._held_samples += frame.samples
        if self._held_s >= CONFIRMED_S or self._held_samples >= self._most:
            yield from self._believe()

    def _believe(self) -> Iterator[tuple[int, T]]:
        """The gap was one."""
        for frame in self._release():
            assert frame.time_s is not None
            yield self._put(frame, self._off(frame.time_s))

    def _deny(self) -> Iterator[tuple[int, T]]:
        """There was no gap: the clock has lied."""
        self.jumps += 1
        for frame in self._release():
            yield self._put(frame, 0.0)
        self._last_s = None

    def _release(self) -> list[SourceFrame[T]]:
        held, self._held, self._held_s, self._held_samples = self._held, [], 0.0, 0
        return held
