"""Applies the alert rules to one call: it receives the call's events and times, and returns alerts. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mediaworker.events import schema as events
from mediaworker.policy.alerts.rules import Rule, Rules
from mediaworker.policy.turns import Turns


@dataclass(slots=True)
class _LegTalk:
    role: str
    since_ms: int | None = None
    """The time at which the leg began to speak; None while it is silent."""
    quiet_ms: int = 0
    """The time at which the leg last stopped speaking."""


class CallAlerts:
    """The alerts of one call.

    Args:
        rules: returns the current rules, which may change during the call.
        is_copy: whether what is heard on a leg now is another leg's sound.
    """

    def __init__(self, rules: Callable[[], Rules], is_copy: Callable[[str], bool]) -> None:
        self._rules, self._is_copy = rules, is_copy
        self._legs: dict[str, _LegTalk] = {}
        self._held: set[str] = set()
        self._alerted: dict[tuple[str, str], int] = {}
        """For each (rule, leg) the start of the silence or overtalk for which it has raised its latest alert."""
        self._turns = Turns()
        self._last_ms: dict[str, int] = {}
        """For each rule the time of its latest alert."""

    def on_event(self, at_ms: int, body: events.EventBody) -> list[events.Alert]:
        """Return the alerts that a published event raises."""
        match body:
            case events.TranscriptFinal():
                return list(self._spotted(body))
            case events.SpeechStarted(leg=name, start_ms=start_ms):
                if (leg := self._legs.get(name)) is not None:
                    leg.since_ms = start_ms
            case events.SpeechEnded():
                return list(self._ended(at_ms, body))
            case events.CallStarted(legs=legs):
                self._legs = {leg.leg: _LegTalk(leg.role) for leg in legs}
            case events.LegUpdated():
                known = self._legs.setdefault(body.leg, _LegTalk(body.role, quiet_ms=at_ms))
                known.role = body.role
            case events.CallHeld(leg=name):
                self._held |= set(self._legs) if name is None else {name}
            case events.CallResumed(leg=name):
                resumed = set(self._legs) if name is None else {name}
                self._held -= resumed
                for each in resumed & self._legs.keys():
                    self._legs[each].quiet_ms = max(self._legs[each].quiet_ms, at_ms)
        return []

    def _ended(self, at_ms: int, body: events.SpeechEnded) -> Iterator[events.Alert]:
        leg = self._legs.get(body.leg)
        if not body.crosstalk:
            yield from self._overtalk(max(at_ms, body.end_ms), end_ms=body.end_ms)
            if leg is not None:
                leg.quiet_ms = body.end_ms
        if leg is not None:
            leg.since_ms = None

    def check(self, now_ms: int) -> list[events.Alert]:
        """Return the alerts that are due by the clock; called periodically during the call."""
        return [*self._silence(now_ms), *self._overtalk(now_ms)]

    def _spotted(self, body: events.TranscriptFinal) -> Iterator[events.Alert]:
        """Yield the alerts for a match in the final, or else for a match in its turn that extends over a pause."""
        turn = self._turns.on_final(body)
        if turn is None:
            return
        for each in self._rules().spotting:
            rule = each.rule
            if rule.role not in (None, body.role) or not self._free(rule, body.end_ms):
                continue
            text, start_ms = body.text, body.start_ms
            if (place := each.find(text, body.language)) is not None:
                found = text[slice(*place)]
            elif turn.latest and (place := each.find(turn.text, body.language, turn.latest)) is not None:
                found = turn.text[slice(*place)]
                text, start_ms = turn.since(place[0])
            else:
                continue
            self._set_last(rule, body.end_ms)
            utterance_id, end_ms = body.utterance_id, body.end_ms
            yield events.Alert(rule.name, body.leg, utterance_id, text, start_ms, end_ms, rule.severity, found)

    def _silence(self, now_ms: int) -> Iterator[events.Alert]:
        if not self._legs or self._held >= self._legs.keys():
            return
        for rule in self._rules().silence:
            assert rule.silence_s is not None
            if rule.role is None:
                legs = [("", list(self._legs))]
            else:
                legs = [
                    (name, [name])
                    for name, leg in self._legs.items()
                    if leg.role == rule.role and name not in self._held
                ]
            for name, silent in legs:
                if any(self._talks(each) for each in silent):
                    continue
                start_ms = max(self._legs[each].quiet_ms for each in silent)
                if now_ms - start_ms >= rule.silence_s * 1000:
                    yield from self._alert_once(rule, name, start_ms, now_ms)

    def _talks(self, name: str) -> bool:
        return self._legs[name].since_ms is not None and not self._is_copy(name)

    def _overtalk(self, now_ms: int, end_ms: int | None = None) -> Iterator[events.Alert]:
        """Yield the alerts for over-talk: the leg that began later talks over the other. `end_ms`: the time at which
        one of them has just stopped; None: both still speak."""
        speaking = sorted(
            ((self._legs[name].since_ms or 0, name) for name in self._legs if self._talks(name)), reverse=True
        )
        if len(speaking) < 2:
            return
        start_ms, name = speaking[0]
        until_ms = now_ms if end_ms is None else end_ms
        for rule in self._rules().overtalk:
            assert rule.overtalk_s is not None
            if rule.role in (None, self._legs[name].role) and until_ms - start_ms >= rule.overtalk_s * 1000:
                yield from self._alert_once(rule, name, start_ms, until_ms)

    def _alert_once(self, rule: Rule, leg: str, start_ms: int, end_ms: int) -> Iterator[events.Alert]:
        """Yield an alert, unless there was one for this silence or overtalk, or the rule's cooldown is running."""
        if self._alerted.get((rule.name, leg)) == start_ms or not self._free(rule, end_ms):
            return
        self._alerted[rule.name, leg] = start_ms
        self._set_last(rule, end_ms)
        yield events.Alert(rule.name, leg, "", "", start_ms, end_ms, rule.severity)

    def _set_last(self, rule: Rule, at_ms: int) -> None:
        self._last_ms[rule.name] = max(at_ms, self._last_ms.get(rule.name, at_ms))

    def _free(self, rule: Rule, at_ms: int) -> bool:
        last_ms = self._last_ms.get(rule.name)
        # The finals of two legs may arrive in another order than their speech, so `at_ms` may be before `last_ms`.
        return last_ms is None or not rule.cooldown_s or at_ms - last_ms >= rule.cooldown_s * 1000
