"""A call with its policy and an engine that answers at once: no socket and no process."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from asr.utterance import Hypothesis, Utterance
from audio import Codec, Detector
from audio.rtp.packet import RtpPacket
from config import Settings
from mediaworker.calls.media_loop import MediaLoop
from mediaworker.calls.parts import TranscriberParts
from mediaworker.calls.registry import CallRegistry
from mediaworker.events import schema as events
from mediaworker.events.call_record import apply
from mediaworker.events.frame import encode, timestamp
from mediaworker.events.schema import CallRecord
from mediaworker.ingress.sip.calls import SipIngress


class Engine:
    """Answers every final at once with how much it has heard."""

    def __init__(self) -> None:
        self.utterances: dict[str, tuple[Utterance, Callable[[Hypothesis], None], bytearray]] = {}

    def open(self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None]) -> None:
        self.utterances[utterance.id] = utterance, on_hypothesis, bytearray()

    def append(self, utterance_id: str, audio: bytes) -> None:
        self.utterances[utterance_id][2].extend(audio)

    def partial(self, utterance_id: str, revision: int) -> None: ...

    def withdraw(self, utterance_id: str) -> None: ...
    def release(self, stream: str) -> None: ...

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        utterance, heard, audio = self.utterances[utterance_id]
        text = f"{len(audio)} {utterance.format}"
        heard(Hypothesis(utterance_id, revision, text, "en", len(text), True))

    def commit(self, utterance_id: str) -> None: ...

    def cancel(self, utterance_id: str) -> None: ...


class Desk:
    """A registry on a clock of its own."""

    def __init__(self, aligner: Any = None, *, engine: Engine | None = None, **settings: Any) -> None:
        self.now = 100.0
        self.published: list[events.EventBody] = []
        self.engine, self.detector = engine or Engine(), Detector()
        self.registry = CallRegistry(
            Settings(**settings),
            TranscriberParts(self.engine, lambda: self.now),
            detector=self.detector,
            publish=lambda call_id, at_ms, body: self.published.append(body),
            aligner=aligner,
            calls_changed=lambda count: self.media.wake(),
        )
        self.media = MediaLoop(self.registry)
        self.sequence = 0

    def of(self, kind: type) -> list[Any]:
        return [body for body in self.published if isinstance(body, kind)]

    def stored(self) -> tuple[CallRecord, list[str]]:
        """What the store has of the one call: its record, and its durable events as frames."""
        record: CallRecord | None = None
        frames = []
        for seq, body in enumerate((each for each in self.published if events.is_durable(each)), 1):
            event = events.Event("s:1", "c1", seq, 0, timestamp(0), body)
            record = apply(record, event)
            frames.append(encode(event))
        assert record is not None
        return record, frames

    async def play(self, codes: bytes, payload_type: int, take: Callable[[bytes, float], None]) -> None:
        for at in range(0, len(codes) - 159, 160):
            self.sequence += 1
            packet = RtpPacket(payload_type, self.sequence, self.sequence * 160, 1, codes[at : at + 160])
            take(bytes(packet), self.now)
            self.now += 0.020
            await self.media.tick(self.now)


def sip_call(codec: Codec = Codec.PCMU, **changes: Any) -> Any:
    """What the ingress sees of a `sip.pjsip.call.SipCall`."""
    events = {"telephone_event": 101, "event_clock_hz": 8000}
    stream = {"label": "", "codec": codec, "payload_type": codec.payload_type} | events | changes
    stream["socket"] = SimpleNamespace(leg=None)
    return SimpleNamespace(
        headers={}, streams=[SimpleNamespace(**stream)], call_id="x", from_uri="sip:1@a", to_uri="sip:2@b", account="",
        held=False, hangup=lambda: None, recording=None, peer="192.0.2.10",
    )  # fmt: skip


class SipDesk(Desk):
    def __init__(self, sip: Any, aligner: Any = None) -> None:
        super().__init__(aligner)
        self.ingress, self.sip = SipIngress(self.registry), Hashed(sip)
        self.ingress.on_call(self.sip)
        (self.call,) = self.registry

    async def hear(self, codes: bytes, payload_type: int) -> None:
        await self.play(codes, payload_type, self.sip.streams[0].socket.leg.receive_rtp)


class Hashed(SimpleNamespace):
    def __init__(self, namespace: Any) -> None:
        super().__init__(**vars(namespace))

    __hash__ = object.__hash__  # type: ignore[assignment]
