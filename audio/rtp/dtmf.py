"""RFC 4733 digits out of telephone-event packets, which repeat themselves and get lost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from audio.rtp.packet import TelephoneEvent

DIGIT_S, DIGIT_BURST = 0.05, 40
"""Nobody dials faster (a digit lasts 40 ms and as long a gap): a flood must not fill the store of all calls."""
SILENCE_S = 0.2
"""An event without packets for so long is over: its last three packets, all marked end, were lost."""


@dataclass(slots=True)
class KeyPress:
    """One key press; its timestamp tells it from others."""

    timestamp: int
    digit: str
    position: int
    duration: int
    """The longest duration seen, in positions."""
    now: float
    """The arrival time of its latest packet."""


class DigitRate:
    """At most 20 digits a second, 40 at once."""

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
    """Takes note of each press once: at its end, at the next press, or when its packets stop."""

    __slots__ = ("_done", "_presses", "open", "rate")

    def __init__(self) -> None:
        self.open: KeyPress | None = None
        """The key that is down, as far as is known."""
        self.rate = DigitRate()
        self._done: deque[int] = deque(maxlen=8)
        self._presses: list[KeyPress] = []

    def receive(self, event: TelephoneEvent, timestamp: int, position: int, now: float) -> None:
        """`timestamp`: of the packet, the same for all packets of a press. The marker bit is not needed."""
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
        """The presses that have ended since the last time."""
        presses, self._presses = self._presses, []
        return presses

    def _finish(self) -> None:
        if (press := self.open) is None:
            return
        self.open = None
        self._done.append(press.timestamp)
        if self.rate.allow(press.now):
            self._presses.append(press)
