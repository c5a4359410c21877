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
CHECKED_BLOCKS = 2
"""The number of one-second blocks that each check reads, from the first sound since the previous check."""


@dataclass(frozen=True, slots=True)
class LegSpec:
    """A leg as the ingress describes it when the call opens; routes may set another role or name."""

    leg: str
    codec: Codec
    role: Role = "unknown"
    label: str = ""
    name: str = ""
    transport: Transport = "rtp"
    telephone_event: int | None = None
    payload_type: int | None = None
    """The negotiated payload type of `codec`; None for its static one."""
    event_clock_hz: int = 8000
    """The RTP clock rate of `telephone_event`."""
    stall_s: float = 0.0
    """The least time without audio after which the stream counts as stalled; 0 for the value of the settings."""


@dataclass(slots=True)
class CallLeg:
    """A leg of a call: its audio, its transcriber and its speaker. `call.started` and `leg.updated` describe it."""

    spec: LegSpec
    audio: Leg
    transcriber: LegTranscriber
    role_is_set: bool = False
    name_is_set: bool = False
    """`role_is_set`, `name_is_set`: a route, an override or a user has set the value, so the peer cannot change it."""
    since_ms: int = 0
    """The call time at which the present speaker replaced another one; 0 for the first speaker."""

    judged: bool = False
    """The format needs no further check: a suspicion has been published, or the ingress checks its own input."""
    _check: tuple[Codec, FormatCheck] | None = None
    _checked: int = 0
    """The leg's position at the latest check."""

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
        """The suspicion that a G.711 leg carries another format, returned at most once; called every few seconds.

        Other codecs are not checked, since their bytes do not show enough.
        """
        codec, position = self.audio.codec, self.audio.position
        if self.judged or self.audio.closed or codec not in G711:
            return None
        if self._check is None or self._check[0] is not codec:
            self._check = codec, FormatCheck(G711[codec], 8000)
            self._check[1].held_back()  # whether packets come in time is known from their timestamps
        if self._check[1].done:
            return None
        codes = self.audio.read(max(self._checked, position - HISTORY), position).lstrip(bytes([codec.silence]))
        self._checked = position
        for at in range(0, min(len(codes), CHECKED_BLOCKS * BLOCK_BYTES), BLOCK_BYTES):
            if (found := self._check[1].feed(codes[at : at + BLOCK_BYTES], 0.0)) is not None:
                self.judged = True
                return events.AudioSuspect(self.spec.leg, found.why, found.detail)
        return None

    def segments(self, now_ms: int) -> list[Segment]:
        """The speech not yet in the totals, in call milliseconds. An open utterance ends at `now_ms`."""
        since_ms = self.transcriber.speaking_since_ms
        speaking = [] if since_ms is None else [(since_ms, max(since_ms, now_ms))]
        return self.transcriber.segments + speaking
