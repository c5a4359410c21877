"""A call that writes down what an ingress does to it. Its legs put chunks where their positions say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused


class RecordedLeg:
    """Like a stream leg of the detector: sample 0 is the anchor, what is missing stays silence."""

    def __init__(self) -> None:
        self.anchored_s: float | None = None
        self.chunks: list[tuple[int, bytes, float]] = []
        self.passed: list[int] = []
        """Up to where the sender has left it out."""
        self.consumed: int | None = None
        """Set by a test that plays the VAD; else everything that arrived is consumed at once."""

    @property
    def end(self) -> int:
        return max((position + len(payload) for position, payload, _ in self.chunks), default=0)

    @property
    def position(self) -> int:
        return self.end if self.consumed is None else self.consumed

    @property
    def origin_s(self) -> float | None:
        return self.anchored_s

    def anchor(self, now: float) -> None:
        if self.anchored_s is None:
            self.anchored_s = now

    def receive_chunk(self, position: int | None, payload: bytes, now: float) -> None:
        assert position is not None and position >= 0
        assert isinstance(payload, bytes)
        self.chunks.append((position, payload, now))

    def pass_over(self, position: int) -> None:
        self.passed.append(position)

    def timeline(self) -> bytes:
        audio = bytearray(b"\xff" * self.end)
        for position, payload, _ in self.chunks:
            audio[position : position + len(payload)] = payload
        return bytes(audio)


class RecordedCall:
    def __init__(self, arguments: dict[str, Any]) -> None:
        self.id = f"call-{arguments['external_id']}"
        self.arguments = arguments
        self.legs: dict[str, Any] = {spec.leg: RecordedLeg() for spec in arguments["legs"]}
        self.members: Any = defaultdict(lambda: SimpleNamespace(judged=False))
        self.on_hangup: Any = None
        self.player: Any = None
        self.specs: list[LegSpec] = list(arguments["legs"])
        self.flushed: list[str] = []
        self.digits: list[tuple[str, str, int]] = []
        self.ends: list[str] = []
        self.published: list[tuple[int, Any]] = []
        self.now_ms = 0

    def add_leg(self, spec: LegSpec) -> RecordedLeg:
        assert spec.leg not in self.legs and not self.ending
        self.specs.append(spec)
        self.legs[spec.leg] = leg = RecordedLeg()
        return leg

    def flush(self, leg: str) -> None:
        self.flushed.append(leg)

    def elapsed_ms(self) -> int:
        return self.now_ms

    def publish(self, at_ms: int, body: Any) -> None:
        assert not self.ending, "call.ended is the last event"
        self.published.append((at_ms, body))

    @property
    def ending(self) -> bool:
        return bool(self.ends)

    def dtmf(self, leg: str, digit: str, duration_ms: int = 0) -> None:
        self.digits.append((leg, digit, duration_ms))

    def end(self, reason: str) -> None:
        self.ends.append(reason)

    def hangup(self) -> None:
        """As `mediaworker.calls.call.Call.hangup` does it."""
        self.on_hangup()
        self.end("api")


class Desk:
    """Opens recorded calls, or refuses them."""

    kind: type[RecordedCall] = RecordedCall

    def __init__(self, refusal: CallRefused | None = None) -> None:
        self.calls: list[Any] = []
        self.refused = refusal

    def refusal(self) -> CallRefused | None:
        return self.refused

    def open(self, *, legs: Sequence[LegSpec], **arguments: Any) -> RecordedCall:
        if self.refused is not None:
            raise self.refused
        self.calls.append(self.kind({"legs": legs, **arguments}))
        return self.calls[-1]
