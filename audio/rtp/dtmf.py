"""The collection of RFC 4733 digits from telephone-event packets, which are repeated and may be lost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from audio.rtp.packet import TelephoneEvent

DIGIT_S, DIGIT_BURST = 0.05, 40
"""The rate limit of digits: no phone dials faster (40 ms of tone, 40 ms of gap), and a flood would fill the store."""
SILENCE_S = 0.2
"""An event without packets for this long has ended: its last three packets, all marked as the end, were lost."""


@dataclass(slots=True)
class KeyPress:
    """One key press, identified by its timestamp."""

    timestamp: int
    digit: str
    position: int
    duration: int
    """The longest duration seen, in positions."""
    now: float
    """The arrival time of its latest packet."""


class DigitRate:
    """A limit of 20 digits per second, with bursts of 40."""

    __slots__ = ("_until_s", "refused")

    def __init__(self) -> None:
        self.refused = 0
        self._until_s = 0.0

    def allow(self, now: float) -> bool:
        until_s = max(self._until_s, now) + DIGIT_S
        if until_s > now + DIGIT_S * DIGIT_BURST:
            self.refused += 1
            return False
        self._until_s = until_s
        return True


class DigitCollector:
    """Reports each press once: at its end, at the next press, or when its packets stop."""

    __slots__ = ("_done", "_presses", "open", "rate")

    def __init__(self) -> None:
        self.open: KeyPress | None = None
        """The key press that has not ended yet."""
        self.rate = DigitRate()
        self._done: deque[int] = deque(maxlen=8)
        self._presses: list[KeyPress] = []

    def receive(self, event: TelephoneEvent, timestamp: int, position: int, now: float) -> None:
        """Process a packet. `timestamp` is the packet's, which is the same for all packets of a press."""
        if event.digit is None or timestamp in self._done:
            return
        if self.open is not None and self.open.timestamp != timestamp:
            self._finish()
        if self.open is None:
            self.open = KeyPress(timestamp, event.digit, position, 0, now)
        self.open.duration = max(self.open.duration, event.duration)
        self.open.now = now
        if event.end:
            self._finish()

    def expire(self, now: float) -> None:
        """End a press whose packets have stopped."""
        if self.open is not None and now - self.open.now >= SILENCE_S:
            self._finish()

    def pop_ended(self) -> list[KeyPress]:
        """Return and forget the presses that have ended since the last call."""
        presses, self._presses = self._presses, []
        return presses

    def _finish(self) -> None:
        if (press := self.open) is None:
            return
        self.open = None
        self._done.append(press.timestamp)
        if self.rate.allow(press.now):
            self._presses.append(press)
