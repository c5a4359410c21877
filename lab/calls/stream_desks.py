"""Calls and legs that keep what a WebSocket session gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audio import Codec
from config import Endpointing
from lab.calls.recording_call import Desk as RecordingDesk
from lab.calls.recording_call import RecordedCall
from mediaworker.events import schema as events


class StreamLeg:
    """Takes what comes after what came before; `consumed` is the VAD's."""

    def __init__(self, position_bytes: int) -> None:
        self.audio, self.consumed, self.arrivals = b"", 0, [0.0]
        self._bytes = position_bytes
        self.change_to = lambda size: setattr(self, "_bytes", size)

    @property
    def position(self) -> int:
        return self.consumed

    @property
    def ahead(self) -> int:
        return len(self.audio) // self._bytes - self.consumed

    def anchor(self, now: float) -> None:
        raise AssertionError("the first audio says when it begins")

    def resume(self, size: int, now: float) -> None:
        assert size >= 0

    def receive_chunk(self, position: int | None, payload: bytes, now: float) -> None:
        assert position is None and payload and len(payload) % self._bytes == 0
        assert now >= self.arrivals[-1]
        self.arrivals.append(now)
        self.audio += payload

    def catch_up(self) -> None:
        self.consumed += self.ahead


class StreamCall(RecordedCall):
    """Speaks when the test says so: `start`, `partial`, `final`; an end says `call.ended` once no final is open."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self.legs = {spec.leg: StreamLeg(spec.codec.position_bytes) for spec in arguments["legs"]}
        self.on_event: Any = None
        self.open: list[str] = []
        self.flushes = self.deferred = 0
        self.tunings: list[tuple[dict[str, str], Endpointing]] = []
        self.codecs: list[Codec] = []
        self.final_at_flush = False

    @property
    def leg(self) -> StreamLeg:
        return self.legs["main"]

    @property
    def awaited_finals(self) -> int:
        return len(self.open)

    def say(self, body: events.EventBody, at_ms: int = 0) -> None:
        if self.on_event is not None:
            self.on_event(at_ms, body)

    def start(self, name: str) -> None:
        self.open.append(name)
        self.say(events.SpeechStarted("main", name, 0))

    def partial(self, name: str, text: str, revision: int = 1) -> None:
        self.say(events.TranscriptPartial("main", "unknown", name, revision, 10, 20, text, 0, "en"))

    def final(self, name: str, text: str, reason: Any = "endpoint", error: str | None = None) -> None:
        self.open.remove(name)
        self.say(events.TranscriptFinal("main", "unknown", name, 9, 10, 20, text, 0, "en", 0, 5, reason, error))
        self._maybe_over()

    def flush(self, leg: str) -> None:
        self.flushes += 1
        self.legs[leg].catch_up()
        for name in tuple(self.open) if self.final_at_flush else ():
            self.final(name, "at once", "flush")

    def leg_ms(self, leg: StreamLeg, position: int) -> int:
        return position // 8

    def defer(self, leg: str) -> None:
        self.deferred += 1

    def retune(self, overrides: Mapping[str, str], shape: Any) -> None:
        self.tunings.append((dict(overrides), shape(Endpointing())))

    def media_changed(self, leg: str, codec: Codec, telephone_event: Any, payload_type: Any) -> None:
        self.flush(leg)
        self.legs[leg].change_to(codec.position_bytes)
        self.codecs.append(codec)

    def end(self, reason: str) -> None:
        if not self.ends:
            super().end(reason)
            self._maybe_over()

    def _maybe_over(self) -> None:
        if self.ends and not self.open:
            self.say(events.CallEnded(self.ends[0], 1000, []), 1234)


class Desk(RecordingDesk):
    kind = StreamCall
