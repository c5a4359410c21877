"""The sending side of a Twilio Media Stream, without I/O: every message as Twilio writes it, and its due time."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

FRAME_MS = 20
FRAME_BYTES = 160
ULAW_SILENCE = b"\xff"


def new_sid(prefix: str) -> str:
    """A new SID: the prefix (`CA`, `MZ` or `AC`) and 32 hex digits."""
    return prefix + secrets.token_hex(16)


@dataclass(slots=True)
class StreamWriter:
    """Writes the messages of one stream; sequence and chunk numbers, like all numbers, are strings."""

    stream_sid: str
    call_sid: str
    account_sid: str
    sequence: int = 0

    def connected(self) -> str:
        return _text({"event": "connected", "protocol": "Call", "version": "1.0.0"})

    def start(self, tracks: Sequence[str], parameters: Mapping[str, str]) -> str:
        body = {
            "accountSid": self.account_sid,
            "streamSid": self.stream_sid,
            "callSid": self.call_sid,
            "tracks": list(tracks),
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": dict(parameters),
        }
        return self._message("start", body)

    def media(self, track: str, index: int, payload: bytes) -> str:
        """The message with frame `index` (from 0) of a track. Chunks count from 1; `timestamp` is the frame's start."""
        body = {
            "track": track,
            "chunk": str(index + 1),
            "timestamp": str(index * FRAME_MS),
            "payload": base64.b64encode(payload).decode(),
        }
        return self._message("media", body)

    def dtmf(self, digit: str) -> str:
        return self._message("dtmf", {"track": "inbound_track", "digit": digit})

    def mark(self, name: str) -> str:
        return self._message("mark", {"name": name})

    def stop(self) -> str:
        return self._message("stop", {"accountSid": self.account_sid, "callSid": self.call_sid})

    def _message(self, event: str, body: dict[str, Any]) -> str:
        self.sequence += 1
        head = {"event": event, "sequenceNumber": str(self.sequence), "streamSid": self.stream_sid}
        return _text({**head, event: body})


def schedule(
    writer: StreamWriter,
    tracks: Mapping[str, bytes],
    parameters: Mapping[str, str],
    *,
    tail_s: float = 0.0,
    digits: str = "",
) -> Iterator[tuple[float, Callable[[], str]]]:
    """The messages of a stream in order: (due time in seconds since the start, function that writes the message).

    A message is written when it is sent, so that a response in between gets its sequence number in turn. `tracks` holds
    µ-law codes. All tracks last as long as the longest one plus `tail_s` of silence; a frame is due when its last
    sample has been spoken. Digits follow each other every 500 ms.
    """
    yield 0.0, writer.connected
    yield 0.0, partial(writer.start, list(tracks), parameters)
    frames = max(-(-len(codes) // FRAME_BYTES) for codes in tracks.values()) + round(tail_s * 1000 / FRAME_MS)
    for index in range(frames):
        due_s = (index + 1) * FRAME_MS / 1000
        for track, codes in tracks.items():
            frame = codes[index * FRAME_BYTES : (index + 1) * FRAME_BYTES]
            yield due_s, partial(writer.media, track, index, frame.ljust(FRAME_BYTES, ULAW_SILENCE))
        if digits and index % 25 == 24:
            yield due_s, partial(writer.dtmf, digits[0])
            digits = digits[1:]
    yield frames * FRAME_MS / 1000, writer.stop


def _text(message: Mapping[str, Any]) -> str:
    return msgspec.json.encode(message).decode()
