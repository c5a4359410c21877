"""The base of sessions that receive audio as a plain stream: AudioSocket, Asterisk's WebSocket channels, `/ws/*`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from audio.rtp.dtmf import DigitRate
from mediaworker.calls.call import Call
from mediaworker.ingress.audio_intake import AudioIntake

DIGITS = frozenset("0123456789ABCD*#")


class DigitCounters(Protocol):
    malformed: int
    implausible: int


class AudioSession:
    """A subclass sets `call`, `_legs` and `_audio` once there is a call, and `_now` at every input.

    `on_problem(problem, detail)` writes a log line.
    """

    def __init__(self, now: float, on_problem: Callable[[str, str], None]) -> None:
        self.call: Call | None = None
        self._legs: tuple[str, ...] = ()
        self._audio: AudioIntake | None = None
        self._digit_rate = DigitRate()
        self._on_problem, self._now = on_problem, now

    @property
    def call_id(self) -> str | None:
        """None before there is a call."""
        return self.call.id if self.call is not None else None

    def _is_streaming(self) -> bool:
        """Whether the session takes audio now."""
        raise NotImplementedError

    def is_ahead(self) -> bool:
        """Whether more has arrived than the legs take for now: the shell reads no further."""
        if not self._is_streaming() or self._audio is None or self.call is None or self.call.ending:
            return False
        if ahead := self._audio.advance() or self._is_overdue():
            for leg in self._legs:
                self.call.defer(leg)
        return ahead

    def _is_overdue(self) -> bool:
        """Whether the engine is too far behind for further audio."""
        return False

    def _finish_audio(self) -> None:
        if self._audio is not None:
            self._audio.finish(self._now)

    def _receive_digit(self, digit: str, counters: DigitCounters, malformed: str, too_fast: str) -> None:
        """Give a digit to the first leg, or log the problem `malformed` or `too_fast`, never the digit itself."""
        assert self.call is not None
        if digit not in DIGITS:
            counters.malformed += 1
            self._on_problem(malformed, f"{len(digit)} characters")
        elif not self._digit_rate.allow(self._now):
            counters.implausible += 1
            self._on_problem(too_fast, self._legs[0])
        else:
            self.call.dtmf(self._legs[0], digit, 0)
