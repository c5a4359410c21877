"""Plays sound to the caller of a bidirectional Twilio stream (`<Connect>`). No I/O.

Twilio plays from its own buffer. A mark follows each sound, and Twilio returns it when the sound has been played or
cleared, so the player knows how much waits.
"""

from __future__ import annotations

from mediaworker.ingress.outbox import Outbox
from mediaworker.ingress.twilio import messages
from mediaworker.ingress.twilio.counters import TwilioCounters

PIECE_CODES = 3200
"""µ-law codes of one message to Twilio: 400 ms."""
MAX_PLAYING_S = 300.0
"""How much sound may wait to be played before further sounds are refused."""
MAX_SOUNDS = 256
"""How many sounds may wait to be played."""
MAX_MESSAGES = 2048
"""The outbox's bound, which is more than all the messages of `MAX_PLAYING_S`."""


class TwilioPlayer:
    """Implements `calls.call.Player`."""

    def __init__(self, outbox: Outbox, stream_sid: str, counters: TwilioCounters) -> None:
        self.clears = 0
        self._outbox, self._stream_sid, self._counters = outbox, stream_sid, counters
        self._sounds = 0
        self._unplayed_s: dict[str, float] = {}
        """The length of each sound that is not yet played, by its mark."""
        self._closed = False

    def play(self, codes: bytes) -> bool:
        """Send the sound and the mark behind it."""
        messages_needed = len(codes) // PIECE_CODES + 3
        full = sum(self._unplayed_s.values()) > MAX_PLAYING_S or len(self._unplayed_s) >= MAX_SOUNDS
        if full or self._outbox.room < messages_needed:
            return False
        self._sounds += 1
        for first in range(0, len(codes), PIECE_CODES):
            piece = messages.PlayMedia(codes[first : first + PIECE_CODES])
            self._send(messages.SendMedia(stream_sid=self._stream_sid, media=piece))
        mark = f"play {self._sounds}"
        self._unplayed_s[mark] = len(codes) / 8000
        self._send(messages.SendMark(stream_sid=self._stream_sid, mark=messages.MarkBody(mark)))
        return True

    def clear(self) -> None:
        """Drop all sound that waits; Twilio returns its marks at once."""
        self.clears += 1
        self._send(messages.SendClear(stream_sid=self._stream_sid))

    def on_mark(self, name: str) -> None:
        """Twilio has played or dropped the sound before this mark."""
        self._unplayed_s.pop(name, None)

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True

    def _send(self, message: messages.SendMedia | messages.SendMark | messages.SendClear) -> None:
        if self._closed:
            self._counters.withheld += 1
        else:
            self._outbox.send(messages.render(message))
