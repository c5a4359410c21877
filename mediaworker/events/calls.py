"""A call's record from its events: a fold, used for the snapshot in `hello`, the store's table and recovery."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mediaworker.events.schema import (
    CallEnded,
    CallHeld,
    CallRecord,
    CallResumed,
    CallStarted,
    Event,
    EventBody,
    LegInfo,
    LegUpdated,
    Speech,
    SpeechStarted,
    TranscriptFinal,
)

RESTART_REVISION = 1_000_000
"""Partials are not stored, so the final written for a dead process cannot know the last revision. An utterance lasts
at most 30 s, and no engine makes a million revisions in that."""


def apply(record: CallRecord | None, event: Event) -> CallRecord:
    """The record after a durable event. Raises ValueError when the call has not begun, or begins twice."""
    body = event.body
    if isinstance(body, CallStarted):
        if record is not None:
            raise ValueError(f"call {event.call_id} starts twice")
        assert event.call_id is not None
        return CallRecord(
            call_id=event.call_id,
            state="live",
            source=body.source,
            direction=body.direction,
            from_=body.from_,
            to=body.to,
            external_id=body.external_id,
            legs=body.legs,
            custom=body.custom,
            started_at=event.time,
            seq=event.seq,
            at_ms=event.at_ms,
        )
    if record is None:
        raise ValueError(f"call {event.call_id} has no call.started")
    at_ms = max(record.at_ms, event.at_ms)  # a digit is dated by its leg, which may run behind
    return msgspec.structs.replace(record, seq=event.seq, at_ms=at_ms, **_changes(record, event, body))


def _changes(record: CallRecord, event: Event, body: EventBody) -> dict[str, object]:
    match body:
        case LegUpdated():
            info = LegInfo(leg=body.leg, role=body.role, label=body.label, name=body.name, codec=body.codec)
            known = any(leg.leg == body.leg for leg in record.legs)
            legs = [info if leg.leg == body.leg else leg for leg in record.legs]
            return {"legs": legs if known else [*legs, info]}
        case CallHeld():
            added = [leg.leg for leg in record.legs] if body.leg is None else [body.leg]
            return _held(record, [*record.held, *(leg for leg in added if leg not in record.held)])
        case CallResumed():
            return _held(record, [] if body.leg is None else [leg for leg in record.held if leg != body.leg])
        case SpeechStarted():
            speech = Speech(leg=body.leg, utterance_id=body.utterance_id, start_ms=body.start_ms)
            return {"speaking": [*record.speaking, speech]}
        case TranscriptFinal():
            return {"speaking": [speech for speech in record.speaking if speech.utterance_id != body.utterance_id]}
        case CallEnded():
            ended = {"ended_at": event.time, "duration_ms": body.duration_ms, "reason": body.reason}
            return {"state": "ended", "held": [], "speaking": [], **ended}
    return {}


def _held(record: CallRecord, held: list[str]) -> dict[str, object]:
    everyone = bool(held) and all(leg.leg in held for leg in record.legs)
    return {"held": held, "state": "held" if everyone else "live"}


def closing(record: CallRecord) -> Iterator[EventBody]:
    """What a call that a dead process left open still owes: a final for all speech, then its end."""
    roles = {leg.leg: leg.role for leg in record.legs}
    for speech in record.speaking:
        yield TranscriptFinal(
            leg=speech.leg,
            role=roles.get(speech.leg, "unknown"),
            utterance_id=speech.utterance_id,
            revision=RESTART_REVISION,
            start_ms=speech.start_ms,
            end_ms=max(speech.start_ms, record.at_ms),
            text="",
            stable_chars=0,
            language="",
            lost_ms=0,
            latency_ms=0,
            reason="failed",
            error="the worker was restarted",
        )
    yield CallEnded(reason="worker_restart", duration_ms=record.at_ms, legs=[])
