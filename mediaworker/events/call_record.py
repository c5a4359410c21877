"""Folds a call's events into its record, and writes the events that a call lacks after its worker has died.

The snapshot in `hello`, the table `calls` of the store and the recovery at a start all use this one fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mediaworker.events import schema as events
from mediaworker.events import talk

HISTORY = frozenset({"speech.started", "speech.ended", "call.held", "call.resumed", "metrics"})
"""The types of the events that `closing` reads."""
RESTART_REVISION = 1_000_000
"""The revision of a final that is written for a dead process. Partials are not stored, so the last revision is unknown;
an utterance lasts at most 30 s, and no engine makes a million revisions in that time."""


def apply(record: events.CallRecord | None, event: events.Event) -> events.CallRecord:
    """Return the record after a durable event. Raises ValueError when the call has not begun, or begins twice."""
    body = event.body
    if isinstance(body, events.CallStarted):
        if record is not None:
            raise ValueError(f"call {event.call_id} starts twice")
        assert event.call_id is not None
        begun: dict[str, Any] = msgspec.structs.asdict(body)
        begun |= {"started_at": event.time, "seq": event.seq, "at_ms": event.at_ms}
        return events.CallRecord(call_id=event.call_id, state="live", **begun)
    if record is None:
        raise ValueError(f"call {event.call_id} has no call.started")
    at_ms = max(record.at_ms, event.at_ms)  # a DTMF digit has the time of its leg, which may lag behind the call
    return msgspec.structs.replace(record, seq=event.seq, at_ms=at_ms, **_changes(record, event, body))


def _changes(record: events.CallRecord, event: events.Event, body: events.EventBody) -> dict[str, object]:
    match body:
        case events.LegUpdated():
            info = events.LegInfo(leg=body.leg, role=body.role, label=body.label, name=body.name, codec=body.codec)
            known = any(leg.leg == body.leg for leg in record.legs)
            legs = [info if leg.leg == body.leg else leg for leg in record.legs]
            return {"legs": legs if known else [*legs, info]}
        case events.CallHeld():
            added = [leg.leg for leg in record.legs] if body.leg is None else [body.leg]
            return _held(record, [*record.held, *(leg for leg in added if leg not in record.held)])
        case events.CallResumed():
            return _held(record, [] if body.leg is None else [leg for leg in record.held if leg != body.leg])
        case events.SpeechStarted():
            speech = events.Speech(leg=body.leg, utterance_id=body.utterance_id, start_ms=body.start_ms)
            return {"speaking": [*record.speaking, speech]}
        case events.TranscriptFinal():
            speaking = [speech for speech in record.speaking if speech.utterance_id != body.utterance_id]
            if not body.text or (record.said is not None and record.said.start_ms > body.start_ms):
                return {"speaking": speaking}
            return {"speaking": speaking, "said": events.LastSaid(body.leg, body.role, body.start_ms, body.text)}
        case events.Alert():
            return {"alert": _worst(record.alert, body)}
        case events.CallEnded():
            ended = {"ended_at": event.time, "duration_ms": body.duration_ms, "reason": body.reason}
            return {"state": "ended", "held": [], "speaking": [], **ended}
    return {}


def _worst(before: events.WorstAlert | None, alert: events.Alert) -> events.WorstAlert:
    """Return the worst alert so far with the number of all alerts; among equally severe ones the latest wins."""
    count = 1 if before is None else before.count + 1
    rank = {severity: number for number, severity in enumerate(events.SEVERITIES)}
    if before is not None and rank.get(before.severity, -1) > rank.get(alert.severity, -1):
        return msgspec.structs.replace(before, count=count)
    return events.WorstAlert(alert.rule, alert.severity, count)


def _held(record: events.CallRecord, held: list[str]) -> dict[str, object]:
    everyone = bool(held) and all(leg.leg in held for leg in record.legs)
    return {"held": held, "state": "held" if everyone else "live"}


def closing(
    record: events.CallRecord,
    history: Iterable[events.Event],
    *,
    reason: str = "worker_restart",
    error: str = "the worker was restarted",
    partials: Mapping[str, events.TranscriptPartial] = {},  # noqa: B006 - read only
) -> Iterator[events.EventBody]:
    """Yield the events that close a call which a dead process left open: an end and a final for each open utterance,
    the metrics of the call, and its `call.ended`. The call ends at its last stored event, and open speech at the latest
    time that is known of it.

    `history`: the call's stored events of the types in `HISTORY`; `partials`: the last partial of each utterance, by
    utterance id, where it is known.
    """
    past = _Past(record, history)
    legs = {leg.leg: leg for leg in record.legs}
    for speech in record.speaking:
        partial = partials.get(speech.utterance_id)
        end_ms = past.ends.get(speech.utterance_id)
        if end_ms is None:
            known_ms = max(record.at_ms, partial.end_ms) if partial is not None else record.at_ms
            end_ms = past.end(speech.leg, speech.utterance_id, known_ms)
            yield events.SpeechEnded(speech.leg, speech.utterance_id, end_ms)
        speaker = partial or legs.get(speech.leg)
        yield events.TranscriptFinal(
            leg=speech.leg,
            role=speaker.role if speaker is not None else "unknown",
            utterance_id=speech.utterance_id,
            revision=RESTART_REVISION,
            start_ms=speech.start_ms,
            end_ms=end_ms,
            text=partial.text if partial is not None else "",
            stable_chars=len(partial.text) if partial is not None else 0,
            language=partial.language if partial is not None else "",
            lost_ms=0,
            latency_ms=0,
            reason="failed",
            error=error,
            name=speaker.name if speaker is not None else "",
        )
    if not past.has_metrics:
        yield past.metrics(record.at_ms)
    yield events.CallEnded(reason=reason, duration_ms=record.at_ms, legs=[])


class _Past:
    """The talk times and holds of a call, read from its stored events."""

    def __init__(self, record: events.CallRecord, history: Iterable[events.Event]) -> None:
        self.has_metrics = False
        """The call's metrics are stored already: its worker, or the worker that recovered it, died after writing them
        and before `call.ended`."""
        self.ends: dict[str, int] = {}
        self._starts = {speech.utterance_id: speech.start_ms for speech in record.speaking}
        self._segments: dict[str, list[talk.Segment]] = {leg.leg: [] for leg in record.legs}
        self._hold_ms = 0
        everyone = {leg.leg for leg in record.legs}
        held: set[str] = set()
        hold_since: int | None = None
        for event in history:
            match event.body:
                case events.SpeechStarted(utterance_id=name, start_ms=start_ms):
                    self._starts[name] = start_ms
                case events.SpeechEnded(leg=leg, utterance_id=name, end_ms=end_ms):
                    self.end(leg, name, end_ms)
                case events.CallHeld(leg=one):
                    held |= everyone if one is None else {one}
                    if hold_since is None and held >= everyone:
                        hold_since = event.at_ms
                case events.CallResumed(leg=one):
                    held -= everyone if one is None else {one}
                    if hold_since is not None and not held >= everyone:
                        self._hold_ms, hold_since = self._hold_ms + event.at_ms - hold_since, None
                case events.Metrics():
                    self.has_metrics = True
        self._hold_since = hold_since

    def end(self, leg: str, utterance_id: str, end_ms: int) -> int:
        start_ms = self._starts.get(utterance_id, end_ms)
        self.ends[utterance_id] = end_ms = max(start_ms, end_ms)
        self._segments.setdefault(leg, []).append((start_ms, end_ms))
        return end_ms

    def metrics(self, at_ms: int) -> events.Metrics:
        hold_ms = self._hold_ms + (0 if self._hold_since is None else max(0, at_ms - self._hold_since))
        sums = talk.totals(self._segments, at_ms, hold_ms)
        return events.Metrics(
            talk_ms=sums.talk_ms,
            overtalk_ms=sums.overtalk_ms,
            silence_ms=sums.silence_ms,
            hold_ms=hold_ms,
            talk_ratio=sums.talk_ratio,
            durable=True,
        )
