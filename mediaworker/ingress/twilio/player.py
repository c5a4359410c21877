"""The player of sound to the caller of a bidirectional Twilio stream (`<Connect>`). No I/O.

Twilio plays from its own buffer. A mark follows each sound, and Twilio returns it when the sound has been played or
cleared. So the player knows how much is still queued, and publishes it in the call's `playback.*` events. A playback is
sound without a pause: one sound, and those queued before it had ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mediaworker.calls.call import Call
from mediaworker.events import schema as events
from mediaworker.ingress.outbox import SessionOutbox
from mediaworker.ingress.twilio.counters import TwilioCounters
from mediaworker.ingress.twilio.messages import written

PIECE_CODES = 3200
"""The µ-law codes per message to Twilio: 400 ms."""
MAX_PLAYING_S = 300.0
"""The duration of queued sound from which on further sounds are refused."""
MAX_SOUNDS = 256
"""The most sounds in the queue."""
MAX_MESSAGES = 2048
"""The limit of the outbox, which exceeds the number of messages in MAX_PLAYING_S of sound."""


@dataclass(frozen=True, slots=True)
class _Sound:
    mark: str
    """The user's name for the end of the sound."""
    length_ms: float


class TwilioPlayer:
    """The player of one stream; implements `calls.sound.Player`. `leg` is the leg to which it plays."""

    def __init__(self, call: Call, leg: str, outbox: SessionOutbox, stream_sid: str, counters: TwilioCounters) -> None:
        self.clears = 0
        self.on_silent: Callable[[], None] = lambda: None
        self._call, self._leg = call, leg
        self._outbox, self._stream_sid, self._counters = outbox, stream_sid, counters
        self._sounds = 0
        self._waiting: dict[str, _Sound] = {}
        """Twilio's mark → a sound that has not been played yet."""
        self._played_ms = 0.0
        """The part of this playback that Twilio has confirmed."""
        self._since_ms = 0
        """The call time at which the first of the waiting sounds began."""
        self._closed = False

    @property
    def playing(self) -> bool:
        return bool(self._waiting)

    @property
    def left_s(self) -> float:
        elapsed_ms = self._call.elapsed_ms() - self._since_ms
        return max(0.0, self._waiting_ms - elapsed_ms) / 1000

    @property
    def _waiting_ms(self) -> float:
        return sum(sound.length_ms for sound in self._waiting.values())

    def play(self, codes: bytes, mark: str = "") -> bool:
        """Send the sound and a mark after it; returns False if the queue is full."""
        messages_needed = len(codes) // PIECE_CODES + 3
        full = self._waiting_ms > MAX_PLAYING_S * 1000 or len(self._waiting) >= MAX_SOUNDS
        if full or self._outbox.room < messages_needed:
            return False
        self._sounds += 1
        for first in range(0, len(codes), PIECE_CODES):
            self._send("media", media={"payload": codes[first : first + PIECE_CODES]})
        name = f"play {self._sounds}"
        self._send("mark", mark={"name": name})
        if not self._closed:
            self._queue(name, _Sound(mark or name, len(codes) / 8))
        return True

    def clear(self) -> None:
        """Drop all queued sound; Twilio returns its marks at once."""
        self.clears += 1
        self._send("clear")
        if self._waiting:
            first = next(iter(self._waiting.values()))
            self._played_ms += min(first.length_ms, max(0, self._call.elapsed_ms() - self._since_ms))
            self._waiting.clear()
            self._publish(events.PlaybackCleared(self._leg, round(self._played_ms)))
            self._end()

    def on_mark(self, name: str) -> None:
        """Count the sound before this mark as played; Twilio has played or dropped it."""
        sound = self._waiting.pop(name, None)
        if sound is None:  # of a sound that was cleared
            return
        self._played_ms += sound.length_ms
        self._since_ms = self._call.elapsed_ms()
        self._publish(events.PlaybackMarked(self._leg, sound.mark, round(self._played_ms)))
        if not self._waiting:
            self._end()

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        self._waiting.clear()

    def _queue(self, name: str, sound: _Sound) -> None:
        begins = not self._waiting
        self._waiting[name] = sound
        if begins:
            self._played_ms, self._since_ms = 0.0, self._call.elapsed_ms()
            self._publish(events.PlaybackStarted(self._leg, sound.mark, 0))

    def _end(self) -> None:
        self._publish(events.PlaybackEnded(self._leg, round(self._played_ms)))
        self.on_silent()

    def _publish(self, body: events.EventBody) -> None:
        self._call.publish(self._call.elapsed_ms(), body)

    def _send(self, event: str, **body: object) -> None:
        if self._closed:
            self._counters.withheld += 1
        else:
            self._outbox.send(written(event, self._stream_sid, **body))
