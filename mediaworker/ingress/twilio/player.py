"""Sound that is played to the caller of a bidirectional Twilio stream (`<Connect>`). No I/O.

Twilio plays from a buffer of its own. A mark follows each sound, and comes back when the sound has been played, or at
once when it was cleared: so it is known how much waits.
"""

from __future__ import annotations

from mediaworker.ingress.outbox import Outbox
from mediaworker.ingress.twilio import messages
from mediaworker.ingress.twilio.counters import TwilioCounters

PIECE_CODES = 3200
"""µ-law codes of one message to Twilio: 400 ms."""
MAX_PLAYING_S = 300.0
"""With more than that not yet played, no further sound is taken."""
MAX_SOUNDS = 256
"""The same for the number of sounds."""
MAX_MESSAGES = 2048
"""Bound of the outbox: more than all the messages of `MAX_PLAYING_S`."""


class TwilioPlayer:
    """Implements `calls.call.Player`."""

    def __init__(self, outbox: Outbox, stream_sid: str, counters: TwilioCounters) -> None:
        self.clears = 0
        self._outbox, self._stream_sid, self._counters = outbox, stream_sid, counters
        self._sounds = 0
        self._unplayed_s: dict[str, float] = {}
        """Length of what is being played, by the mark behind it."""
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
        """Twilio sends the marks of what it drops back at once."""
        self.clears += 1
        self._send(messages.SendClear(stream_sid=self._stream_sid))

    def on_mark(self, name: str) -> None:
        """Twilio has played, or dropped, what came before this mark."""
        self._unplayed_s.pop(name, None)

    def close(self) -> None:
        """The stream takes nothing any more."""
        self._closed = True

    def _send(self, message: messages.SendMedia | messages.SendMark | messages.SendClear) -> None:
        if self._closed:
            self._counters.withheld += 1
        else:
            self._outbox.send(messages.render(message))
