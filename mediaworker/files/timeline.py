"""Places decoded frames on the timeline of their source, with silence where audio is missing between two. No I/O.

Every frame is placed once, in the order in which it was decoded. Its timestamp can only put silence before it:

- Containers round timestamps, Matroska to a millisecond, so a difference below a tolerance is ignored.
- When the clock is set back (two recordings joined by `cat`, MPEG-TS), it starts anew at the end of the placed audio.
- When the clock jumps ahead, the gap is held in doubt until the clock has gone on from there for a while. If the clock
  comes back first, a damaged packet had a wrong timestamp and there was no gap. A jump that is longer than any
  recording is never a gap.
- When the clock returns to what it was before it was set back, it continues as before.
- When the clock is slower than the samples, the frames follow one another, and a later gap is shorter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
TOLERANCE_S = 0.040
DOUBTED_S = 0.2
"""A longer gap is held in doubt until the frames that follow confirm it."""
CONFIRMED_S = 40.0
"""The audio that confirms a gap. A Matroska cluster has one timestamp for all its blocks and lasts 33 s at most."""
CONFIRMED_SAMPLES = 4_000_000
"""The samples of all channels that confirm a gap as well, because they are kept in memory until then."""
LAST_S = 60.0
"""A gap before the last frames of a source, which no frame can confirm, counts up to this length."""
CLOCKS = 4
"""The number of earlier clock offsets that are remembered."""


@dataclass(frozen=True, slots=True)
class SourceFrame(Generic[T]):
    frame: T
    time_s: float | None
    """The timestamp of its first sample, from the start of the source; None: the frame has none."""
    samples: int
    rate_hz: int


class SourceTimeline(Generic[T]):
    """The timeline of one audio stream. `place` and `finish` yield (silence before the frame, in samples at its rate;
    frame).

    Args:
        longest_gap_s: a longer jump ahead is a wrong clock, not a gap.
        channels: the number of channels of each frame.
    """

    def __init__(self, *, longest_gap_s: float, channels: int = 1) -> None:
        self._longest_gap_s, self._most = longest_gap_s, CONFIRMED_SAMPLES // channels
        self._shift_s = 0.0
        """The offset that is added to timestamps of the current clock."""
        self._shifts_s: deque[float] = deque(maxlen=CLOCKS)
        """The offsets of earlier clocks."""
        self._last_s: float | None = None
        """The timestamp of the latest placed frame."""
        self._held: list[SourceFrame[T]] = []
        """The frames after a gap that is in doubt."""
        self._held_s, self._held_samples = 0.0, 0
        self.position_s = 0.0
        """The end of the placed audio."""
        self.jumps = 0
        """How often the clock was wrong or was set back."""

    def place(self, frame: SourceFrame[T]) -> Iterator[tuple[int, T]]:
        """Add a frame; yield the frames whose places are now certain."""
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
        """Yield the frames that are still held."""
        if self._held:
            assert self._held[0].time_s is not None
            yield from self._believe() if self._off(self._held[0].time_s) <= LAST_S else self._deny()

    def _off(self, time_s: float) -> float:
        """Return how far a timestamp lies ahead of the placed audio."""
        return time_s + self._shift_s - self.position_s

    def _place(self, frame: SourceFrame[T]) -> Iterator[tuple[int, T]]:
        off_s = 0.0 if frame.time_s is None else self._follow(frame.time_s)
        if off_s > DOUBTED_S:
            yield from self._hold(frame)
        else:
            yield self._put(frame, off_s)

    def _follow(self, time_s: float) -> float:
        """Return `_off`; when the clock has jumped, by the offset that holds from here on."""
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
        """Place the held frames after the gap, which is confirmed."""
        for frame in self._release():
            assert frame.time_s is not None
            yield self._put(frame, self._off(frame.time_s))

    def _deny(self) -> Iterator[tuple[int, T]]:
        """Place the held frames without a gap: their timestamps were wrong."""
        self.jumps += 1
        for frame in self._release():
            yield self._put(frame, 0.0)
        self._last_s = None

    def _release(self) -> list[SourceFrame[T]]:
        held, self._held, self._held_s, self._held_samples = self._held, [], 0.0, 0
        return held
