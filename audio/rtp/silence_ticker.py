"""The timer for the silence that all streams send, those of SIP and of AudioSocket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

PTIME_S = 0.020
SAMPLES = 160
"""The RTP clock ticks in 20 ms at 8 kHz, which also hold for G.722."""
_PHASES = 4


class SilenceSender(Protocol):
    def send_silence(self, periods: int) -> None:
        """Send 20 ms of silence. `periods` is the number of 20 ms periods since the previous one."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class TimerLoop(Protocol):
    """The part of an asyncio event loop that the ticker uses, since `audio` itself has no clock."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[int], object], index: int, /) -> TimerHandle: ...


class SilenceTicker:
    """One timer for the silence of all senders: 20 ms each, spread over four phases so that no tick is long.

    A sender must not add or remove any while it sends.
    """

    def __init__(self, loop: TimerLoop) -> None:
        self._loop = loop
        self._phases: list[dict[SilenceSender, int]] = [{} for _ in range(_PHASES)]
        self._timer: TimerHandle | None = None
        self._start_s = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._phases))

    def add(self, sender: SilenceSender) -> None:
        if self.has(sender):
            return
        if self._timer is None:
            self._start_s = self._loop.time()
            self._arm(0)
        due = self._index(self._loop.time())
        phase = min(range(_PHASES), key=lambda i: len(self._phases[i]))
        self._phases[phase][sender] = due

    def has(self, sender: SilenceSender) -> bool:
        return any(sender in phase for phase in self._phases)

    def remove(self, sender: SilenceSender) -> None:
        for phase in self._phases:
            phase.pop(sender, None)
        if self._timer is not None and not any(self._phases):
            self._timer.cancel()
            self._timer = None

    def _index(self, now: float) -> int:
        return int((now - self._start_s) / (PTIME_S / _PHASES))

    def _arm(self, index: int) -> None:
        self._timer = self._loop.call_at(self._start_s + index * PTIME_S / _PHASES, self._tick, index)

    def _tick(self, index: int) -> None:
        # The schedule is absolute: a late tick does not move the next ones, and periods that were missed completely are
        # not made up for.
        index += max(0, self._index(self._loop.time()) - index) // _PHASES * _PHASES
        senders = self._phases[index % _PHASES]
        for sender, last in senders.items():
            sender.send_silence(max(1, (index - last) // _PHASES))
            senders[sender] = index
        index += 1
        while not self._phases[index % _PHASES]:
            index += 1
        self._arm(index)
