"""When silence is due: one timer for all connections of AudioSocket."""

from __future__ import annotations

import asyncio
from typing import Protocol

PTIME_S = 0.020
_PHASES = 4


class Speaker(Protocol):
    def speak(self, now: float) -> None:
        """Send 20 ms, if the peer takes it."""


class AudioSocketSilence:
    """One timer for the silence of all connections: 20 ms each, in four phases so that no tick is long."""

    def __init__(self) -> None:
        self._phases: list[dict[Speaker, None]] = [{} for _ in range(_PHASES)]
        self._timer: asyncio.TimerHandle | None = None
        self._start_s = 0.0

    def add(self, speaker: Speaker) -> None:
        min(self._phases, key=len)[speaker] = None
        if self._timer is None:
            self._start_s = asyncio.get_running_loop().time()
            self._arm(0)

    def remove(self, speaker: Speaker) -> None:
        for phase in self._phases:
            phase.pop(speaker, None)
        if self._timer is not None and not any(self._phases):
            self._timer.cancel()
            self._timer = None

    def _arm(self, index: int) -> None:
        at = self._start_s + index * PTIME_S / _PHASES
        self._timer = asyncio.get_running_loop().call_at(at, self._tick, index)

    def _tick(self, index: int) -> None:
        now = asyncio.get_running_loop().time()
        # The schedule is absolute; what a late tick has missed is left out, not made up for.
        missed = int((now - self._start_s) / (PTIME_S / _PHASES)) - index
        index += max(0, missed) // _PHASES * _PHASES
        for speaker in tuple(self._phases[index % _PHASES]):
            speaker.speak(now)
        if self._timer is not None:
            self._arm(index + 1)
