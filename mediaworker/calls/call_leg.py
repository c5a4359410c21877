"""A leg of a call as users see it, beside its audio and its transcriber."""

from __future__ import annotations

from dataclasses import dataclass

from audio import Codec, Leg
from audio.format_check import BLOCK_BYTES, FormatCheck
from audio.legs.due import Transport
from audio.ring import HISTORY
from config.sections.section import Role
from mediaworker.calls.live_utterance import Speaker
from mediaworker.calls.transcriber import LegTranscriber
from mediaworker.events import schema as events
from mediaworker.events.talk import Segment

G711 = {Codec.PCMU: "mulaw", Codec.PCMA: "alaw"}
LOOKS = 2
"""Blocks of a second that are looked at each time, the first ones since the last time that are not silent."""


@dataclass(frozen=True, slots=True)
class LegSpec:
    """What an ingress knows of a leg when the call opens; routes may set another role or name."""

    leg: str
    codec: Codec
    role: Role = "unknown"
    label: str = ""
    name: str = ""
    transport: Transport = "rtp"
    telephone_event: int | None = None
    payload_type: int | None = None
    """The negotiated payload type of `codec`; None: its static one."""
    event_clock_hz: int = 8000
    """The RTP clock rate of `telephone_event`."""
    stall_s: float = 0.0
    """How long a stream that sends nothing is waited for at least; 0: as the settings say."""


@dataclass(slots=True)
class CallLeg:
    """Made by `CallRegistry`; `call.started` and `leg.updated` tell users about it."""

    spec: LegSpec
    audio: Leg
    transcriber: LegTranscriber
    role_is_set: bool = False
    name_is_set: bool = False
    """By a route, an override or a user: what the peer says later changes nothing."""
    since_ms: int = 0
    """When the present speaker took the leg over from another, in call time; 0: nobody had it before."""

    judged: bool = False
    """Whether nobody need look at the format: a suspicion has been told, or the ingress looks at what it receives."""
    _check: tuple[Codec, FormatCheck] | None = None
    _looked: int = 0
    """The leg's position at the latest look."""

    @property
    def speaker(self) -> Speaker:
        return self.transcriber.speaker

    def info(self) -> events.LegInfo:
        return events.LegInfo(
            leg=self.spec.leg,
            role=self.speaker.role,
            label=self.spec.label,
            name=self.speaker.name,
            codec=self.audio.codec.rtp_name,
        )

    def updated(self) -> events.LegUpdated:
        info = self.info()
        return events.LegUpdated(info.leg, info.role, info.name, info.label, info.codec, self.since_ms)

    def media(self) -> events.LegMedia:
        return events.LegMedia(
            leg=self.spec.leg,
            packets=self.audio.packets,
            lost=self.audio.lost_packets,
            late=self.audio.late,
            jitter_ms=round(self.audio.jitter_ms, 1),
        )

    def suspicion(self) -> events.AudioSuspect | None:
        """What G.711 most likely is instead, told once; called from time to time. Other codecs tell too little."""
        codec, position = self.audio.codec, self.audio.position
        if self.judged or self.audio.closed or codec not in G711:
            return None
        if self._check is None or self._check[0] is not codec:
            self._check = codec, FormatCheck(G711[codec], 8000)
            self._check[1].held_back()  # whether packets come in time is known from their timestamps
        if self._check[1].done:
            return None
        codes = self.audio.read(max(self._looked, position - HISTORY), position).lstrip(bytes([codec.silence]))
        self._looked = position
        for at in range(0, min(len(codes), LOOKS * BLOCK_BYTES), BLOCK_BYTES):
            if (found := self._check[1].feed(codes[at : at + BLOCK_BYTES], 0.0)) is not None:
                self.judged = True
                return events.AudioSuspect(self.spec.leg, found.why, found.detail)
        return None

    def segments(self, now_ms: int) -> list[Segment]:
        """The speech not yet added up, in call milliseconds; an open utterance ends at `now_ms`, the leg's position."""
        since_ms = self.transcriber.speaking_since_ms
        speaking = [] if since_ms is None else [(since_ms, max(since_ms, now_ms))]
        return self.transcriber.segments + speaking
