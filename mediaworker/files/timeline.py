"""Where decoded frames lie on the timeline of their source: what is missing between two is silence, what is there twice
is dropped. Pure.

Timestamps are believed beyond a tolerance only: containers round them, Matroska to a millisecond, and a sample more or
less at each frame would be noise. A jump that no recording makes (MPEG-TS starts its clock over, a damaged packet lies)
is not a gap: the audio goes on where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE_S = 0.040
BACK_S = 10.0
"""A frame that claims to be so much earlier does not overlap: its clock has been set anew."""


@dataclass(frozen=True, slots=True)
class FramePlace:
    """What to do with a frame, in samples of its rate."""

    silence: int
    """Before it."""
    skip: int
    """Of its own samples at the start."""


class SourceTimeline:
    """One audio stream.

    Args:
        longest_gap_s: more is no gap.
    """

    def __init__(self, *, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._shift_s = 0.0
        """What timestamps are off by since the last jump."""
        self._next_s = 0.0
        """End of what has been placed."""
        self.jumps = 0

    @property
    def position_s(self) -> float:
        return self._next_s

    def place(self, time_s: float | None, samples: int, rate_hz: int) -> FramePlace:
        """`time_s`: of the frame's first sample from the start of the source; None when the frame does not say."""
        off_s = 0.0 if time_s is None else time_s + self._shift_s - self._next_s
        if not -BACK_S <= off_s <= self._longest_gap_s:
            self._shift_s -= off_s
            self.jumps += 1
            off_s = 0.0
        silence = skip = 0
        if off_s > TOLERANCE_S:
            silence = round(off_s * rate_hz)
        elif off_s < -TOLERANCE_S:
            skip = min(samples, round(-off_s * rate_hz))
        self._next_s += (silence + samples - skip) / rate_hz
        return FramePlace(silence, skip)
