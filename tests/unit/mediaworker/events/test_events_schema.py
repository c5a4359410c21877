"""Event frames: encode and decode are inverses, the JSON Schema and the documents say what the code does."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect as mi

from lab.house import ROOT
from mediaworker.events import call_record
from mediaworker.events.frame import decode, encode, printable, timestamp
from mediaworker.events.schema import (
    BODIES,
    TYPES,
    Alert,
    CallEnded,
    CallHeld,
    CallRecord,
    CallResumed,
    CallStarted,
    Dtmf,
    Event,
    EventBody,
    EventError,
    LastSaid,
    LegInfo,
    LegUpdated,
    Metrics,
    SpeechEnded,
    SpeechStarted,
    TranscriptFinal,
    WorstAlert,
    is_durable,
    type_of,
)
from tools.events_schema import generate

DOCS = ROOT / "docs"
CONTRACT = {
    "call.started", "leg.updated", "call.held", "call.resumed", "speech.started", "speech.ended", "transcript.partial",
    "transcript.final", "transcript.words", "dtmf", "alert", "metrics", "call.ended", "call.erased", "engine.state",
    "lagged", "hello", "playback.started", "playback.marked", "playback.cleared", "playback.ended", "audio.suspect",
}  # fmt: skip
INT = st.integers(-(2**53), 2**53)


def strategy(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a msgspec type, found by introspection."""
    match kind:
        case mi.Metadata():
            return strategy(kind.type)
        case mi.StrType():
            return st.text(max_size=20)
        case mi.BoolType():
            return st.booleans()
        case mi.IntType():
            return INT
        case mi.FloatType():
            return st.floats(allow_nan=False, allow_infinity=False)
        case mi.NoneType():
            return st.none()
        case mi.LiteralType():
            return st.sampled_from(kind.values)
        case mi.UnionType():
            return st.one_of([strategy(option) for option in kind.types])
        case mi.ListType():
            return st.lists(strategy(kind.item_type), max_size=3)
        case mi.DictType():
            return st.dictionaries(strategy(kind.key_type), strategy(kind.value_type), max_size=3)
        case mi.StructType():
            return st.fixed_dictionaries({field.name: strategy(field.type) for field in kind.fields}).map(
                lambda values: kind.cls(**values)
            )
    raise AssertionError(f"no strategy for {kind}")


ENVELOPE = {
    "cursor": st.text(max_size=20),
    "call_id": st.none() | st.text(max_size=20),
    "seq": INT,
    "at_ms": INT,
    "time": st.floats(0, 4e9).map(timestamp),
}


def events(kind: type[EventBody]) -> st.SearchStrategy[Event]:
    return st.builds(Event, body=strategy(mi.type_info(kind)), **ENVELOPE)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(generate())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_every_type_of_the_contract_is_there() -> None:
    assert TYPES == CONTRACT
    assert len(BODIES) == len(TYPES)


@pytest.mark.parametrize("kind", BODIES)
@given(data=st.data())
def test_encode_and_decode_are_inverses(
    kind: type[EventBody], data: st.DataObject, validator: jsonschema.Draft202012Validator
) -> None:
    event = data.draw(events(kind))
    frame = encode(event)
    assert decode(frame) == event
    assert decode(frame.encode()) == event
    assert encode(decode(frame)) == frame
    document = json.loads(frame)
    validator.validate(document)
    assert document["v"] == 1
    assert document["type"] == type_of(event.body)


def test_call_started_has_a_field_named_from() -> None:
    body = CallStarted("sip", "inbound", "+1", "+2", "id", [LegInfo("main", "agent", "", "", "PCMU")], {})
    document = json.loads(encode(Event("s:1", "c", 1, 0, timestamp(0.0), body)))
    assert document["from"] == "+1"
    assert document["time"] == "1970-01-01T00:00:00.000Z"
    assert document["legs"] == [{"leg": "main", "role": "agent", "label": "", "name": "", "codec": "PCMU"}]


def test_optional_fields_are_left_out() -> None:
    assert "leg" not in json.loads(encode(Event("s:1", "c", 1, 0, "", CallHeld())))
    assert json.loads(encode(Event("s:1", "c", 1, 0, "", CallHeld("main"))))["leg"] == "main"


def test_durable_is_every_type_but_four() -> None:
    transient = {str(kind.__struct_config__.tag) for kind in BODIES if not kind.DURABLE}
    assert transient == {"transcript.partial", "hello", "lagged"}
    figures = ({}, 0, 0, 0, {})
    assert not is_durable(Metrics(*figures))
    assert is_durable(Metrics(*figures, durable=True))


@given(st.one_of(st.text(), st.binary(), st.recursive(st.none() | st.text() | INT, st.lists).map(json.dumps)))
def test_decode_raises_nothing_but_event_error(frame: str | bytes) -> None:
    with pytest.raises(EventError):
        decode(frame)


@pytest.mark.parametrize(
    "frame",
    [
        '{"v":2,"type":"call.held","cursor":"s:1","call_id":"c","seq":1,"at_ms":0,"time":""}',
        '{"v":1,"type":"call.exploded","cursor":"s:1","call_id":"c","seq":1,"at_ms":0,"time":""}',
        '{"v":1,"type":"dtmf","cursor":"s:1","call_id":"c","seq":1,"at_ms":0,"time":""}',
        '{"v":1,"type":"call.held","call_id":"c","seq":1,"at_ms":0,"time":""}',
        b'{"v":1,"type":"call.held","cursor":"\xff","call_id":"c","seq":1,"at_ms":0,"time":""}',
    ],
)
def test_decode_refuses(frame: str | bytes) -> None:
    with pytest.raises(EventError):
        decode(frame)


def test_unknown_fields_are_ignored() -> None:
    event = Event("s:1", "c", 1, 0, "", CallHeld())
    assert decode(encode(event)[:-1] + ',"later":{"x":1}}') == event


def test_lone_surrogates_are_replaced() -> None:
    body = CallStarted("sip", "inbound", "a\udc80", "", "", [], {"x\udfff": "\ud800"})
    with pytest.raises(UnicodeEncodeError):
        encode(Event("s:1", "c", 1, 0, "", body))
    cleaned = printable(body)
    assert isinstance(cleaned, CallStarted)
    assert (cleaned.from_, cleaned.custom) == ("a?", {"x?": "?"})


# -- the call record -------------------------------------------------------------------------------------------------


def fold(*bodies: EventBody) -> CallRecord:
    record = None
    for seq, body in enumerate(bodies, 1):
        record = call_record.apply(record, Event("s:1", "c", seq, seq * 100, timestamp(seq), body))
    assert record is not None
    return record


LEGS = [LegInfo("inbound", "customer", "", "", "PCMU"), LegInfo("outbound", "agent", "", "", "PCMU")]
STARTED = CallStarted("twilio", "inbound", "+1", "+2", "CA1", LEGS, {"k": "v"})


def final(utterance_id: str, leg: str = "inbound", **fields: Any) -> TranscriptFinal:
    values = dict(
        leg=leg, role="customer", utterance_id=utterance_id, revision=2, start_ms=0, end_ms=500, text="hello",
        stable_chars=5, language="en", lost_ms=0, latency_ms=20, reason="endpoint",
    )  # fmt: skip
    return TranscriptFinal(**(values | fields))  # type: ignore[arg-type]


def test_record_of_a_call() -> None:
    record = fold(STARTED, SpeechStarted("inbound", "u1", 10), SpeechStarted("outbound", "u2", 20), final("u1"))
    assert record.state == "live"
    assert (record.from_, record.custom, record.started_at) == ("+1", {"k": "v"}, timestamp(1))
    assert [speech.utterance_id for speech in record.speaking] == ["u2"]
    assert (record.seq, record.at_ms) == (4, 400)


def test_record_of_what_was_said_last() -> None:
    assert fold(STARTED).said is None and fold(STARTED).alert is None
    late, early = final("u2", "outbound", role="agent", start_ms=900, text="late"), final("u1", text="early")
    raised = [Alert(rule, "inbound", "u1", "", 0, 500, "info") for rule in ("one", "two")]
    empty = final("u3", start_ms=2000, text="")
    record = fold(STARTED, late, raised[0], early, empty, raised[1], CallEnded("api", 1, []))
    assert record.said == LastSaid("outbound", "agent", 900, "late"), "by when it was said, and by words"
    assert record.alert == WorstAlert("two", "info", 2)


def test_the_record_keeps_the_worst_alert_and_counts_them() -> None:
    severities = ["warning", "critical", "info", "critical", "warning"]
    raised = [Alert(f"{at} {each}", "inbound", "u1", "", 0, 500, each) for at, each in enumerate(severities)]
    seen = [fold(STARTED, *raised[:count]).alert for count in range(1, 6)]
    assert [(alert.rule, alert.count) for alert in seen if alert] == [
        ("0 warning", 1), ("1 critical", 2), ("1 critical", 3), ("3 critical", 4), ("3 critical", 5)
    ]  # fmt: skip


def test_record_of_a_held_call() -> None:
    assert fold(STARTED, CallHeld("inbound")).state == "live"
    assert fold(STARTED, CallHeld("inbound"), CallHeld("outbound")).state == "held"
    assert fold(STARTED, CallHeld()).held == ["inbound", "outbound"]
    assert fold(STARTED, CallHeld(), CallResumed("inbound")).held == ["outbound"]
    assert fold(STARTED, CallHeld(), CallResumed()).state == "live"


def test_record_of_an_ended_call() -> None:
    record = fold(STARTED, CallHeld(), SpeechStarted("inbound", "u1", 0), CallEnded("hangup", 1234, []))
    assert (record.state, record.reason, record.duration_ms, record.held) == ("ended", "hangup", 1234, [])
    assert record.ended_at == timestamp(4)


def test_leg_updated_changes_its_leg_only() -> None:
    record = fold(STARTED, LegUpdated("outbound", "agent", "Ann", "", "G722"))
    assert [(leg.leg, leg.name, leg.codec) for leg in record.legs] == [
        ("inbound", "", "PCMU"),
        ("outbound", "Ann", "G722"),
    ]


def test_a_call_must_begin_once() -> None:
    with pytest.raises(ValueError, match="no call.started"):
        fold(Dtmf("main", "1", 80))
    with pytest.raises(ValueError, match="twice"):
        fold(STARTED, STARTED)


def told(*bodies: EventBody) -> list[Event]:
    return [Event("s:1", "c", number, number * 100, timestamp(number), body) for number, body in enumerate(bodies, 1)]


def test_closing_gives_every_open_speech_its_end_and_its_final() -> None:
    """One utterance is over, one has ended without its final, one is still being spoken."""
    story = (
        STARTED,
        SpeechStarted("inbound", "u1", 10),
        SpeechStarted("outbound", "u2", 20),
        SpeechEnded("inbound", "u1", 110),
        final("u1"),
        SpeechEnded("outbound", "u2", 220),
        CallHeld(),
        CallResumed(),
        SpeechStarted("inbound", "u3", 700),
        CallHeld("inbound"),
    )
    *owed, figures, ended = call_record.closing(fold(*story), told(*story))
    assert [(type(body).__name__, body.utterance_id, body.leg) for body in owed] == [
        ("TranscriptFinal", "u2", "outbound"),
        ("SpeechEnded", "u3", "inbound"),
        ("TranscriptFinal", "u3", "inbound"),
    ]
    assert [body.end_ms for body in owed] == [220, 1000, 1000]
    assert [(body.role, body.text, body.reason) for body in owed[::2]] == [
        ("agent", "", "failed"),
        ("customer", "", "failed"),
    ]
    assert all(body.error for body in owed[::2])
    assert isinstance(figures, Metrics) and figures.durable
    assert figures.talk_ms == {"inbound": 100 + 300, "outbound": 200} and figures.overtalk_ms == 90
    assert (figures.hold_ms, figures.silence_ms) == (100, 1000 - 100 - (100 + 110 + 300))
    assert isinstance(ended, CallEnded)
    assert (ended.reason, ended.duration_ms) == ("worker_restart", 1000)


def test_hold_counts_while_all_legs_are_on_hold() -> None:
    alone, both = (CallHeld("inbound"), CallHeld("outbound"), CallResumed("inbound")), CallHeld()
    story = (STARTED, *alone, both, Dtmf("inbound", "1", 0))
    figures, _ = call_record.closing(fold(*story), told(*story))
    assert isinstance(figures, Metrics) and figures.hold_ms == 100 + 100


def test_closing_that_was_itself_cut_short_is_not_doubled() -> None:
    story = [STARTED, SpeechStarted("inbound", "u1", 10), CallHeld()]
    whole = list(call_record.closing(fold(*story), told(*story)))
    for done in range(len(whole)):
        again = [*story, *whole[:done]]
        owed = list(call_record.closing(fold(*again), told(*again)))
        assert [type(body) for body in owed] == [type(body) for body in whole[done:]]


# -- documents -------------------------------------------------------------------------------------------------------


def test_committed_schema_is_the_generated_one() -> None:
    assert (DOCS / "schemas/events.schema.json").read_text(encoding="utf-8") == generate(), "run `make schema`"


def test_schema_refuses_what_is_no_event(validator: jsonschema.Draft202012Validator) -> None:
    good = json.loads(encode(Event("s:1", "c", 1, 0, "", Dtmf("main", "1", 80))))
    validator.validate(good)
    for name in good:
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({key: value for key, value in good.items() if key != name})


def test_asyncapi_names_every_event() -> None:
    text = (DOCS / "asyncapi.yaml").read_text(encoding="utf-8")
    referenced = set(re.findall(r"schemas/events\.schema\.json#/\$defs/([a-z.]+)", text))
    assert referenced == TYPES


def test_events_document_describes_every_event_and_field() -> None:
    text = (DOCS / "reference/events.md").read_text(encoding="utf-8")
    for kind in BODIES:
        start = text.find(f"### `{kind.__struct_config__.tag}`")
        assert start >= 0, kind
        section = text[start : text.find("\n### ", start + 1)]
        for field in msgspec.structs.fields(kind):
            assert f"`{field.encode_name}" in section, f"{kind.__struct_config__.tag}: {field.encode_name}"
