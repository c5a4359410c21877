"""A call: one or more legs on a common clock, each with its own speech and text, never mixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from audio import Codec, Detector, Leg
from config.sections.section import Role
from config.settings import Endpointing
from mediaworker.calls.call_leg import CallLeg, LegSpec
from mediaworker.calls.crosstalk import Crosstalk
from mediaworker.calls.hold import HoldState
from mediaworker.calls.live_utterance import Speaker
from mediaworker.calls.parts import CallInfo
from mediaworker.calls.routing import CallPlan
from mediaworker.calls.sound import Player
from mediaworker.events import schema as events
from mediaworker.events import talk
from mediaworker.policy.alerts.call import CallAlerts
from mediaworker.policy.alerts.rules import Rules
from mediaworker.policy.redaction.call import CallPrivacy

log = structlog.get_logger()

CONFIRMED_S = 5.0
"""How long a peer may take to confirm that it has played everything before the call is ended without it."""
SETTLED_MS = 60_000
"""Speech older than this is complete: no leg lags that far behind the others, and no utterance is that long."""


@dataclass(frozen=True, slots=True)
class CallParts:
    """The parts that all calls of a registry share."""

    detector: Detector
    publish: Callable[[str, int, events.EventBody], None]
    clock: Callable[[], float]
    closed: Callable[[Call], None]
    later: Callable[[float, Callable[[], None]], object]
    """Runs a function after a number of seconds."""


class Call:
    """One call. `CallRegistry.open` creates it; an ingress feeds `legs[...]`, reports hold and digits, and ends it.

    `call.started` is the first event and `call.ended` the last, after all finals.

    Args:
        plan: returns the plan that results from the routes and the given overrides.
        words_wait_s: how long the end waits for word timestamps after the last final.
        make_leg: opens a leg that joins during the call.
        privacy: screens every event before it is published.
        rules: returns the current rules of alerts, which every screened event may raise; None: there are none.
    """

    def __init__(
        self,
        info: CallInfo,
        parts: CallParts,
        *,
        plan: Callable[[Mapping[str, str]], CallPlan],
        words_wait_s: float,
        make_leg: Callable[[Call, LegSpec], CallLeg],
        privacy: CallPrivacy,
        rules: Callable[[], Rules] | None = None,
    ) -> None:
        self.info, self.id, self.start_s = info, info.id, parts.clock()
        self.members: dict[str, CallLeg] = {}
        self.on_hangup: Callable[[], None] | None = None
        """Set by the ingress: ends the call at the peer."""
        self.player: Player | None = None
        """Set by an ingress that can play audio to its peer."""
        self.on_event: Callable[[int, events.EventBody], None] | None = None
        """Set by an ingress that sends transcripts to its peer: takes (at_ms, event body)."""
        self._detector, self._publish, self._clock = parts.detector, parts.publish, parts.clock
        self._closed, self._later = parts.closed, parts.later
        self._plan, self._words_wait_s = plan, words_wait_s
        self._make_leg, self._privacy = make_leg, privacy
        self._alerts = CallAlerts(rules, self._hears_another) if rules is not None else None
        self._ending: str | None = None
        self._ended = self._waits_for_words = False
        self._media: list[events.LegMedia] = []
        self._duration_ms: int | None = None
        """Set once every leg has been finished: only then may the last final close the call."""
        self._published_ms = 0
        """`at_ms` of the latest event."""
        self._hold = HoldState()
        self.crosstalk = Crosstalk(lambda: (each.transcriber for each in self.members.values()), self.leg_ms)
        self._past = talk.Sums()
        """Totals of the speech that is older than SETTLED_MS."""

    @property
    def legs(self) -> dict[str, Leg]:
        """leg name → the audio leg that takes its packets or chunks."""
        return {name: member.audio for name, member in self.members.items()}

    @property
    def media(self) -> list[events.LegMedia]:
        """Each leg's figures in `call.ended`; empty before the end."""
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
                account=info.account,
            ),
        )

    def publish(self, at_ms: int, body: events.EventBody) -> None:
        """Screen an event, publish it, and pass it to the peer and to the alerts."""
        spoken = self._privacy.screen(at_ms, body)
        body = self._privacy.written(spoken)
        at_ms = self._publish_at(at_ms, body)
        try:
            if self.on_event is not None:
                self.on_event(at_ms, body)
            if self._alerts is not None:
                for alert in self._alerts.on_event(at_ms, spoken):
                    self._publish_at(at_ms, alert)
        except Exception:  # a fault of a listener must not end the call
            log.exception("a listener of the call failed", call_id=self.id)

    def check_alerts(self) -> None:
        """Publish the alerts that are due by the clock; called periodically."""
        if self._alerts is not None:
            now_ms = self.elapsed_ms()
            for alert in self._alerts.check(now_ms):
                self._publish_at(now_ms, alert)

    def _publish_at(self, at_ms: int, body: events.EventBody) -> int:
        """Publish an event and return its `at_ms`, which never decreases.

        The time asked for may lie before that of an earlier event, because one leg may lag behind another. It may also
        lie beyond the audio, because a final's latency is measured by the wall clock.
        """
        self._published_ms = max(self._published_ms, min(at_ms, self.elapsed_ms()))
        self._publish(self.id, self._published_ms, body)
        return self._published_ms

    def elapsed_ms(self) -> int:
        """The call's clock: the position of the leg whose audio has been processed furthest.

        It runs ahead of the wall clock where audio arrives faster than in real time, and stands still while no audio
        arrives. Before the first audio it follows the wall clock.
        """
        heard = [self.leg_ms(leg, leg.position) for leg in self.legs.values() if leg.position]
        elapsed_ms = max(heard) if heard else round((self._clock() - self.start_s) * 1000)
        return max(self._published_ms, elapsed_ms)

    def leg_ms(self, leg: Leg, position: int) -> int:
        """Call time of a leg's position. A leg's sample 0 is its first arrival."""
        origin_s = self.start_s if leg.origin_s is None else leg.origin_s
        return max(0, round((origin_s - self.start_s) * 1000) + position // 8)

    def _hears_another(self, leg: str) -> bool:
        return leg in self.members and self.members[leg].transcriber.hears_another

    # -- what the peer does -----------------------------------------------------------------------------------------

    def dtmf(self, leg: str, digit: str, duration_ms: int = 0) -> None:
        """A digit that arrived beside the media (Twilio, SIP INFO); RFC 4733 digits arrive through the leg."""
        self.publish(self.elapsed_ms(), events.Dtmf(leg, digit, duration_ms))

    def add_leg(self, spec: LegSpec) -> Leg:
        """Open a leg that joins the call, and announce it by `leg.updated`. Returns the leg that takes its packets."""
        assert spec.leg not in self.members
        member = self._make_leg(self, spec)
        self.add(member)
        self._leg_updated(member)
        self._update_hold()
        return member.audio

    def describe(self, leg: str, *, role: Role, name: str, another: bool = False) -> None:
        """Apply the peer's new description of a leg, except where a route, an override or a user has set it.

        `another`: the description is of a new person, who speaks all utterances that begin from now on. Otherwise it
        corrects the description of the present speaker.
        """
        member = self.members[leg]
        before = member.speaker
        now = Speaker(before.role if member.role_is_set else role, before.name if member.name_is_set else name)
        if now == before or self.ending:
            return
        if another:
            self._finish(member, "flush")
            member.since_ms = self.leg_ms(member.audio, member.audio.position)
            member.transcriber.speaker = now
        else:
            before.role, before.name = now.role, now.name
        self._leg_updated(member)

    def held(self, leg: str | None = None) -> None:
        """The peer has put a leg on hold, or all of them."""
        if not self.ending and self._hold.hold(self._legs_named(leg)):
            self._update_hold()
            self.publish(self.elapsed_ms(), events.CallHeld(leg))

    def resumed(self, leg: str | None = None) -> None:
        if not self.ending and self._hold.resume(self._legs_named(leg)):
            self._update_hold()
            self.publish(self.elapsed_ms(), events.CallResumed(leg))

    def left(self, leg: str) -> None:
        """The peer has removed a leg's stream: the leg is on hold until `held` or `resumed` is called for it."""
        if self.ending or self._hold.has_left(leg):
            return
        self.flush(leg)
        self._hold.leave(leg)
        self._update_hold()
        self.publish(self.elapsed_ms(), events.CallHeld(leg, left=True))

    def _legs_named(self, leg: str | None) -> set[str]:
        return set(self.members) if leg is None else {leg}

    def _update_hold(self) -> None:
        self._hold.update(self.members.keys(), self.elapsed_ms() / 1000)

    def flush(self, leg: str) -> None:
        """Run the detector over all audio that has arrived, and end the leg's open utterance."""
        if not self.ending:
            self._finish(self.members[leg], "flush")

    def defer(self, leg: str) -> None:
        """The worker throttles the sender of the stream, so missing audio does not count as silence."""
        self.members[leg].audio.defer(self._clock())

    def media_changed(
        self,
        leg: str,
        codec: Codec,
        telephone_event: int | None,
        payload_type: int | None,
        event_clock_hz: int = 8000,
    ) -> None:
        """Apply a newly negotiated media description; one that equals the present one changes nothing."""
        member = self.members[leg]
        before = member.spec
        member.spec = replace(
            before,
            codec=codec,
            telephone_event=telephone_event,
            payload_type=payload_type,
            event_clock_hz=event_clock_hz,
        )
        if member.spec == before:
            return
        if codec is not before.codec:
            self._finish(member, "flush")
        self._detector.change(member.audio, codec, telephone_event, payload_type, event_clock_hz)
        if codec is not before.codec:
            self._leg_updated(member)

    # -- what a user does -------------------------------------------------------------------------------------------

    def rename(self, leg: str, name: str) -> None:
        """Raises KeyError for an unknown leg."""
        member = self.members[leg]
        member.speaker.name, member.name_is_set = name, True
        self._leg_updated(member)

    def set_language(self, language: str) -> None:
        """Set the language of utterances that begin from now on."""
        for member in self.members.values():
            member.transcriber.language = language

    def retune(self, overrides: Mapping[str, str], shape: Callable[[Endpointing], Endpointing]) -> None:
        """Use the language, context and endpointing of these overrides for utterances that begin from now on.

        `shape` may change the profile's endpointing. A change of endpointing ends the open utterance.
        """
        if self.ending:
            return
        plan = self._plan(overrides)
        endpointing = shape(plan.endpointing)
        for member in self.members.values():
            if endpointing != member.transcriber.endpointing:
                self._finish(member, "flush")
                self._detector.retune(member.audio, endpointing)
                member.transcriber.endpointing = endpointing
            member.transcriber.language, member.transcriber.context = plan.language, plan.context

    def hangup_after_playback(self) -> None:
        """End the call once everything queued has been played."""
        if self.player is None or not self.player.playing:
            self.hangup()
            return
        self.player.on_silent = self.hangup
        self._later(self.player.left_s + CONFIRMED_S, self._hang_up_unconfirmed)

    def _hang_up_unconfirmed(self) -> None:
        """End the call although the peer has not confirmed playback, unless more has been queued meanwhile."""
        if self.ending:
            return
        if self.player is not None and self.player.left_s > 0:
            self._later(self.player.left_s + CONFIRMED_S, self._hang_up_unconfirmed)
        else:
            self.hangup()

    def hangup(self, reason: str = "api") -> None:
        """End the call at the peer and here."""
        if self.on_hangup is not None:
            self.on_hangup()
        self.end(reason)

    # -- the end ----------------------------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """Finish all legs; `call.ended` follows the last final. Idempotent."""
        if self._ending is not None:
            return
        self._ending = reason
        how: Literal["shutdown", "hangup"] = "shutdown" if reason == "shutdown" else "hangup"
        for member in self.members.values():
            self._finish(member, how)
        self._media = [member.media() for member in self.members.values()]
        for member in self.members.values():
            self._detector.close(member.audio)
        self._duration_ms = self.elapsed_ms()
        self._hold.stop(self._duration_ms / 1000)
        self.drained()

    def drained(self) -> None:
        """End the call if it is ending and no leg has an open utterance or waits for word timestamps.

        Legs call this whenever their last final, or their last word timestamps, have been published.
        """
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
        for member in self.members.values():
            member.transcriber.release()
        self.publish_metrics(durable=True)
        self.publish(self.elapsed_ms(), events.CallEnded(self._ending, self._duration_ms, self._media))
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
        segments = {
            name: member.segments(self.leg_ms(member.audio, member.audio.position))
            for name, member in self.members.items()
        }
        hold_ms = round(self._hold.total_s(duration_ms / 1000) * 1000)
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

    def _finish(self, member: CallLeg, how: Literal["flush", "hangup", "shutdown"]) -> None:
        for detection in self._detector.finishing(member.audio, how):
            member.transcriber.on_detection(detection)

    def _leg_updated(self, member: CallLeg) -> None:
        self.publish(self.elapsed_ms(), member.updated())
