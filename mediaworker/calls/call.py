"""A call: one or more legs on a common clock, each with its own speech and text, never mixed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import structlog

from audio import Codec, Detection, Detector, Leg
from config.sections.section import Role
from config.settings import Endpointing
from mediaworker.calls import talk
from mediaworker.calls.routing import CallPlan
from mediaworker.calls.transcriber import LegTranscriber
from mediaworker.events import schema as events
from mediaworker.policy.alerts.call import CallAlerts
from mediaworker.policy.redaction.call import CallPrivacy

log = structlog.get_logger()

Transport = Literal["rtp", "stream"]
SETTLED_MS = 60_000
"""No leg is so far behind the others, and no utterance so long, that speech older than this would still come up."""


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
    """The negotiated one of `codec`; None: its static one."""
    event_clock_hz: int = 8000
    """Of the `telephone_event`."""


@dataclass(slots=True)
class CallInfo:
    """Who calls whom, and through what."""

    id: str
    source: str
    external_id: str
    direction: str
    from_: str
    to: str
    account: str = ""
    custom: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class CallLeg:
    """A leg as users see it, beside its audio and its transcriber."""

    spec: LegSpec
    role: str
    name: str
    audio: Leg
    transcriber: LegTranscriber
    role_is_set: bool = False
    name_is_set: bool = False
    """By a route, an override or a user: what the peer says of it later changes nothing."""

    def info(self) -> events.LegInfo:
        return events.LegInfo(
            leg=self.spec.leg, role=self.role, label=self.spec.label, name=self.name, codec=self.audio.codec.rtp_name
        )


class Player(Protocol):
    """Plays to the caller: µ-law at 8 kHz."""

    clears: int
    """How often `clear` was called."""

    def play(self, codes: bytes) -> bool:
        """Play this behind what is still being played; False when too much waits."""

    def clear(self) -> None:
        """Play no more of what waits."""


class Call:
    """Made by `CallRegistry.open`. An ingress feeds `legs[...]`, reports hold and digits, and ends it.

    `call.started` is the first event and `call.ended` the last, after all finals.

    Args:
        plan: what routes and the given overrides make of this call.
        later: runs a function after so many seconds.
        words_wait_s: so long the end waits for the times of words, once its last final is out.
        grow: makes a leg that comes while the call lasts.
        privacy: what every event passes through before anybody sees it.
        alerts: what hears every event then, and raises others.
    """

    def __init__(
        self,
        info: CallInfo,
        *,
        detector: Detector,
        start_s: float,
        publish: Callable[[str, int, events.EventBody], None],
        clock: Callable[[], float],
        closed: Callable[[Call], None],
        plan: Callable[[Mapping[str, str]], CallPlan],
        later: Callable[[float, Callable[[], None]], object],
        words_wait_s: float,
        grow: Callable[[Call, LegSpec], CallLeg] | None = None,
        privacy: CallPrivacy | None = None,
        alerts: CallAlerts | None = None,
    ) -> None:
        self.info, self.id, self.start_s = info, info.id, start_s
        self.members: dict[str, CallLeg] = {}
        self.on_hangup: Callable[[], None] | None = None
        """Set by the ingress: how to end the call at the peer."""
        self.player: Player | None = None
        """Set by an ingress whose peer can be spoken to."""
        self.on_event: Callable[[int, events.EventBody], None] | None = None
        """Set by an ingress whose peer is told what is said: takes (at_ms, event body)."""
        self._detector = detector
        self._publish, self._clock, self._closed, self._plan = publish, clock, closed, plan
        self._later, self._words_wait_s = later, words_wait_s
        self._grow, self._privacy, self._alerts = grow, privacy, alerts
        self._ending: str | None = None
        self._ended = self._waits_for_words = False
        self._media: list[events.LegMedia] = []
        self._duration_ms: int | None = None
        """Set once every leg has been finished: only then may the last final close the call."""
        self._held: set[str] = set()
        """Legs on hold."""
        self._left: set[str] = set()
        """Those of them whose stream is gone."""
        self._hold_since: float | None = None
        """All of them are, since then."""
        self._hold_s = 0.0
        self._past = talk.Sums()
        """Of the speech that is older than SETTLED_MS."""

    @property
    def legs(self) -> dict[str, Leg]:
        """leg name → the audio leg that takes its packets or chunks."""
        return {name: member.audio for name, member in self.members.items()}

    @property
    def media(self) -> list[events.LegMedia]:
        """What `call.ended` says of each leg; empty before the end."""
        return self._media

    @property
    def ending(self) -> bool:
        return self._ending is not None

    @property
    def awaited_finals(self) -> int:
        """Utterances that have begun and have no final."""
        return sum(member.transcriber.open_utterances for member in self.members.values())

    def add(self, member: CallLeg) -> None:
        member.audio.key = member.transcriber
        self.members[member.spec.leg] = member

    def started(self) -> None:
        info = self.info
        self.publish(
            0,
            events.CallStarted(
                source=info.source,
                direction=info.direction,
                from_=info.from_,
                to=info.to,
                external_id=info.external_id,
                legs=[member.info() for member in self.members.values()],
                custom=info.custom,
            ),
        )

    def publish(self, at_ms: int, body: events.EventBody) -> None:
        if self._privacy is not None:
            body = self._privacy.screen(at_ms, body)
        self._publish(self.id, at_ms, body)
        try:
            if self.on_event is not None:
                self.on_event(at_ms, body)
            if self._alerts is not None:
                for alert in self._alerts.heard(at_ms, body):
                    self._publish(self.id, at_ms, alert)
        except Exception:  # who listens must not end what is said
            log.exception("a listener of the call failed", call_id=self.id)

    def check_alerts(self) -> None:
        """Raise what is due by the clock; to be called now and then."""
        if self._alerts is not None:
            now_ms = self.elapsed_ms()
            for alert in self._alerts.check(now_ms):
                self._publish(self.id, now_ms, alert)

    def elapsed_ms(self) -> int:
        return max(0, round((self._clock() - self.start_s) * 1000))

    def leg_ms(self, leg: Leg, position: int) -> int:
        """Call time of a leg's position. A leg's sample 0 is its first arrival."""
        origin_s = self.start_s if leg.origin_s is None else leg.origin_s
        return max(0, round((origin_s - self.start_s) * 1000) + position // 8)

    # -- what the peer does -----------------------------------------------------------------------------------------

    def dtmf(self, leg: str, digit: str, duration_ms: int = 0) -> None:
        """A digit that came beside the media (Twilio, SIP INFO); RFC 4733 digits come through the leg."""
        self.publish(self.elapsed_ms(), events.Dtmf(leg, digit, duration_ms))

    def add_leg(self, spec: LegSpec) -> Leg:
        """Somebody joins: `leg.updated` says so. Returns the audio leg that takes its packets."""
        assert self._grow is not None and spec.leg not in self.members
        member = self._grow(self, spec)
        self.add(member)
        self._leg_updated(member)
        self._count_hold()
        return member.audio

    def describe(self, leg: str, *, role: Role, name: str) -> None:
        """What the peer says of a leg now; routes, overrides and users know better."""
        member = self.members[leg]
        before = member.role, member.name
        if not member.role_is_set:
            member.role = member.transcriber.role = role
        if not member.name_is_set:
            member.name = name
        if before != (member.role, member.name) and not self.ending:
            self._leg_updated(member)

    def held(self, leg: str | None = None) -> None:
        """The peer has put a leg on hold, or all of them."""
        legs = set(self.members) if leg is None else {leg}
        if legs <= self._held - self._left or self.ending:
            return
        self._held |= legs
        self._left -= legs
        self._count_hold()
        self.publish(self.elapsed_ms(), events.CallHeld(leg))

    def resumed(self, leg: str | None = None) -> None:
        legs = set(self.members) if leg is None else {leg}
        if not legs & self._held or self.ending:
            return
        self._held -= legs
        self._left -= legs
        self._count_hold()
        self.publish(self.elapsed_ms(), events.CallResumed(leg))

    def left(self, leg: str) -> None:
        """The peer has taken a leg's stream out of the call: on hold, until `held` or `resumed` says otherwise."""
        if leg in self._left or self.ending:
            return
        self.flush(leg)
        self._held.add(leg)
        self._left.add(leg)
        self._count_hold()
        self.publish(self.elapsed_ms(), events.CallHeld(leg, left=True))

    def _count_hold(self) -> None:
        """`hold_ms` is the time in which nobody could be heard."""
        everyone = bool(self._held) and self._held >= self.members.keys()
        if everyone and self._hold_since is None:
            self._hold_since = self._clock()
        elif not everyone:
            self._hold_s, self._hold_since = self._held_s(), None

    def flush(self, leg: str) -> None:
        """Run what has arrived, and end what is being said here and now."""
        if not self.ending:
            self._detected(self.members[leg], self._detector.finishing(self.members[leg].audio, "flush"))

    def defer(self, leg: str) -> None:
        """A stream's sender is held back by us: that it says nothing does not mean that there is nothing."""
        self.members[leg].audio.defer(self._clock())

    def media_changed(
        self,
        leg: str,
        codec: Codec,
        telephone_event: int | None,
        payload_type: int | None,
        event_clock_hz: int = 8000,
    ) -> None:
        """A new media description is in force; nothing happens when it says what the one before said."""
        member = self.members[leg]
        before = member.spec
        now = replace(
            before,
            codec=codec,
            telephone_event=telephone_event,
            payload_type=payload_type,
            event_clock_hz=event_clock_hz,
        )
        if before == now:
            return
        member.spec = now
        if codec is not before.codec:
            self._detected(member, self._detector.finishing(member.audio, "flush"))
        self._detector.change(member.audio, codec, telephone_event, payload_type, event_clock_hz)
        if codec is not before.codec:
            self._leg_updated(member)

    # -- what a user does -------------------------------------------------------------------------------------------

    def rename(self, leg: str, name: str) -> None:
        """Raises KeyError for an unknown leg."""
        member = self.members[leg]
        member.name, member.name_is_set = name, True
        self._leg_updated(member)

    def set_language(self, language: str) -> None:
        """For the utterances that begin from now on."""
        for member in self.members.values():
            member.transcriber.language = language

    def retune(self, overrides: Mapping[str, str], shape: Callable[[Endpointing], Endpointing]) -> None:
        """Language, context and endpointing as if the call had begun with these overrides, for what begins from now on.

        `shape` has the last word on the profile. Another endpointing ends what is being said.
        """
        if self.ending:
            return
        plan = self._plan(overrides)
        endpointing = shape(plan.endpointing)
        for member in self.members.values():
            if endpointing != member.transcriber.endpointing:
                self._detected(member, self._detector.finishing(member.audio, "flush"))
                self._detector.retune(member.audio, endpointing)
                member.transcriber.endpointing = endpointing
            member.transcriber.language, member.transcriber.context = plan.language, plan.context

    def hangup(self, reason: str = "api") -> None:
        """End the call at the peer and here."""
        if self.on_hangup is not None:
            self.on_hangup()
        self.end(reason)

    # -- the end ----------------------------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """Run what has arrived, end open speech, and say `call.ended` when the last final is out. Idempotent."""
        if self._ending is not None:
            return
        self._hold_s, self._hold_since = self._held_s(), None
        self._ending = reason
        how: Literal["shutdown", "hangup"] = "shutdown" if reason == "shutdown" else "hangup"
        for member in self.members.values():
            self._detected(member, self._detector.finishing(member.audio, how))
        self._media = [self._media_report(member) for member in self.members.values()]
        for member in self.members.values():
            self._detector.close(member.audio)
        self._duration_ms = self.elapsed_ms()
        self.drained()

    def drained(self) -> None:
        """A leg has no open utterance left, or words have come."""
        if self._ending is None or self._duration_ms is None or self._ended:
            return
        if any(member.transcriber.open_utterances for member in self.members.values()):
            return
        if any(member.transcriber.words for member in self.members.values()):
            if not self._waits_for_words:
                self._waits_for_words = True
                self._later(self._words_wait_s, self._without_words)
            return
        self._ended = True
        self.publish_metrics(durable=True)
        body = events.CallEnded(reason=self._ending, duration_ms=self._duration_ms, legs=self._media)
        self.publish(self.elapsed_ms(), body)
        self._closed(self)

    def _without_words(self) -> None:
        for member in self.members.values():
            if member.transcriber.words is not None:
                member.transcriber.words.give_up()
        self.drained()

    def publish_metrics(self, *, durable: bool = False) -> None:
        duration_ms = self.elapsed_ms() if self._duration_ms is None else self._duration_ms
        settled_ms = self.elapsed_ms() - SETTLED_MS
        self._past.add({n: talk.take_before(m.transcriber.segments, settled_ms) for n, m in self.members.items()})
        segments = {}
        for name, member in self.members.items():
            spans = list(member.transcriber.segments)
            since = member.transcriber.speaking_since_ms
            if since is not None:
                spans.append((since, max(since, self.leg_ms(member.audio, member.audio.position))))
            segments[name] = spans
        hold_ms = round(self._held_s() * 1000)
        figures = talk.totals(segments, duration_ms, hold_ms, self._past)
        body = events.Metrics(
            talk_ms=figures.talk_ms,
            overtalk_ms=figures.overtalk_ms,
            silence_ms=figures.silence_ms,
            hold_ms=hold_ms,
            talk_ratio=figures.talk_ratio,
            durable=durable,
        )
        self.publish(self.elapsed_ms(), body)

    def _held_s(self) -> float:
        return self._hold_s + (0.0 if self._hold_since is None else self._clock() - self._hold_since)

    def _detected(self, member: CallLeg, detections: Iterable[Detection]) -> None:
        for detection in detections:
            member.transcriber.on(detection)

    def _leg_updated(self, member: CallLeg) -> None:
        info = member.info()
        body = events.LegUpdated(leg=info.leg, role=info.role, name=info.name, label=info.label, codec=info.codec)
        self.publish(self.elapsed_ms(), body)

    @staticmethod
    def _media_report(member: CallLeg) -> events.LegMedia:
        audio = member.audio
        return events.LegMedia(
            leg=member.spec.leg,
            packets=audio.packets,
            lost=audio.lost_packets,
            late=audio.late,
            jitter_ms=round(audio.jitter_ms, 1),
        )
