"""Spans of a call: their names, times, parents and ids, without a collector."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uuid_utils import uuid7

from asr.messages import Answered
from audio import Codec
from audio.codecs.g711 import ulaw_encode
from config import ConfigError
from config.load import parse
from lab.calls.desks import Desk
from lab.media.speech import speech
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.parts import TranscriberParts
from mediaworker.calls.registry import CallRegistry
from mediaworker.events.frame import timestamp
from mediaworker.events.schema import EventBody, TranscriptFinal, type_of
from mediaworker.events.subscription import Entry
from mediaworker.tracing.traces import RELAY_S, FinalTimes, Span, TraceParent, Traces

CALL = str(uuid7())
NAME = f"{CALL}/main/1"
OFFSET_NS = 1_795_000_000 * 1_000_000_000
FINAL = FinalTimes(
    utterance_id=NAME, leg="main", reason="endpoint", latency_ms=700, start_s=101.0, end_s=103.0, known_s=103.6,
    asked_s=103.2, queue_s=0.1, engine_s=0.5, published_s=103.7,
)  # fmt: skip


@dataclass
class Sent:
    """Takes spans, and is the clock."""

    spans: list[Span] = field(default_factory=list)
    counters: object = None
    now: float = 100.0

    def send(self, spans: list[Span]) -> None:
        self.spans += spans

    async def stop(self) -> None:
        """Nothing waits."""

    def times(self) -> dict[str, tuple[float, float]]:
        return {each.name: (at_s(each.start_ns), at_s(each.end_ns)) for each in self.spans}


def at_s(unix_ns: int) -> float:
    return round((unix_ns - OFFSET_NS) / 1e9, 6)


def traces(sent: Sent, share: float = 1.0) -> Traces:
    return Traces(sent, share, clock=lambda: sent.now, offset_ns=lambda: OFFSET_NS)


def entry(type_: str, call_id: str = CALL) -> Entry:
    return Entry(1, call_id, 1, type_, "{}", 0.0)


def story(final: FinalTimes, *, shown_s: float = 103.75) -> Sent:
    """A call with one final, which is shown then."""
    sent = Sent()
    told = traces(sent)
    told.on_call(CALL, 100.0, source="sip", direction="inbound", external_id="x")
    told.on_shown(entry("call.started"))
    told.on_final(final)
    sent.now = shown_s
    told.on_shown(entry("transcript.final"))
    sent.now = shown_s + 1
    told.on_shown(entry("call.ended"))
    return sent


def test_the_parts_of_an_utterance_stand_where_they_were() -> None:
    sent = story(FINAL)
    assert sent.times() == {
        "call": (100.0, 104.75), "utterance": (101.0, 103.75), "speech": (101.0, 103.0), "endpoint": (103.0, 103.6),
        "queue": (103.2, 103.3), "engine": (103.3, 103.7), "commit": (103.7, 103.75),
    }  # fmt: skip
    by_name = {span.name: span for span in sent.spans}
    call, utterance = by_name.pop("call"), by_name.pop("utterance")
    assert {span.trace_id for span in sent.spans} == {int(CALL.replace("-", ""), 16)}, "the call's id"
    assert (call.parent_id, utterance.parent_id) == (0, call.span_id) and call.span_id != utterance.span_id != 0
    assert {(span.parent_id, span.span_id) for span in by_name.values()} == {(utterance.span_id, 0)}
    assert call.attributes == {"call_id": CALL, "source": "sip", "direction": "inbound", "external_id": "x"}
    assert utterance.attributes == {
        "call_id": CALL, "leg": "main", "utterance_id": NAME, "reason": "endpoint", "latency_ms": 700,
    }  # fmt: skip
    assert not any(span.failed for span in sent.spans)


def test_what_has_not_happened_has_no_span() -> None:
    sent = story(replace(FINAL, known_s=None, asked_s=0.0, engine_s=0.0, reason="failed"))
    assert sent.times().keys() == {"call", "utterance", "speech", "commit"}
    assert [span.name for span in sent.spans if span.failed] == ["utterance"]


times = st.floats(90, 110)


@given(times, times, st.none() | times, times, st.floats(0, 9), st.floats(0, 9), times, st.floats(100, 110))
def test_every_span_lies_within_its_parent(
    start_s: float, end_s: float, known_s: float | None, asked_s: float, queue_s: float, engine_s: float,
    published_s: float, shown_s: float,
) -> None:  # fmt: skip
    """Whatever the clocks of peers say: speech of a client ahead of real time ends in the future."""
    final = replace(
        FINAL, start_s=start_s, end_s=end_s, known_s=known_s, asked_s=asked_s, queue_s=queue_s, engine_s=engine_s,
        published_s=published_s,
    )  # fmt: skip
    sent = story(final, shown_s=shown_s)
    spans = {span.name: span for span in sent.spans}
    assert all(span.start_ns <= span.end_ns for span in sent.spans)
    assert spans["call"].start_ns <= spans["utterance"].start_ns <= spans["utterance"].end_ns <= spans["call"].end_ns
    assert sum(span.end_ns - span.start_ns for span in sent.spans if span.name in ("queue", "engine")) <= 9e9


def test_finals_are_matched_in_the_order_of_their_publication() -> None:
    sent = Sent()
    told = traces(sent)
    told.on_call(CALL, 100.0)
    for number in (1, 2, 3):
        told.on_final(replace(FINAL, utterance_id=f"{CALL}/main/{number}"))
    for _ in range(3):
        told.on_shown(entry("transcript.final"))
    shown = [span.attributes["utterance_id"] for span in sent.spans if span.name == "utterance"]
    assert shown == [f"{CALL}/main/{number}" for number in (1, 2, 3)]


def test_calls_that_are_not_traced_leave_nothing() -> None:
    sent = Sent()
    told = traces(sent, share=0.0)
    told.on_call(CALL, 100.0)
    assert told.utterance(NAME) == told.parent(CALL) == ""
    told.on_final(FINAL)
    for type_ in ("transcript.final", "call.ended", "engine.state"):
        told.on_shown(entry(type_))
    told.on_shown(Entry(None, None, 1, "engine.state", "{}", 0.0))
    assert sent.spans == []


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_calls_is_traced_and_every_worker_knows_which(share: float) -> None:
    one, other = traces(Sent(), share), traces(Sent(), share)
    calls = [str(uuid7()) for _ in range(4000)]
    traced = [call_id for call_id in calls if one.parent(call_id)]
    assert [call_id for call_id in calls if other.parent(call_id)] == traced
    assert abs(len(traced) - share * len(calls)) < 200


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1))
def test_parse_is_the_inverse_of_print(trace_id: int, span_id: int) -> None:
    parent = TraceParent(trace_id, span_id)
    assert TraceParent.parse(str(parent)) == parent


@pytest.mark.parametrize(
    "text", ["", "00-1-2-01", f"00-{'a' * 32}-{'b' * 16}-00", f"00-{'A' * 32}-{'b' * 16}-01", "x" * 55]
)
def test_what_is_no_traceparent_makes_no_span(text: str) -> None:
    sent = Sent()
    told = traces(sent)
    assert TraceParent.parse(text) is None
    told.on_answered(Answered(1, text, 1.0, 0.1, False), "w", "moonshine")
    told.on_relayed(text, NAME, "2026-11-24T20:00:00.000Z")
    assert sent.spans == []


def test_an_engine_server_stands_under_the_utterance() -> None:
    worker, sent = Sent(), Sent(now=103.9)
    told = traces(worker)
    told.on_call(CALL, 100.0)
    told.on_final(FINAL)
    told.on_shown(entry("transcript.final"))
    answered = Answered(1, told.utterance(NAME), 103.2, 0.025, failed=True)
    traces(sent).on_answered(answered, "a worker", "moonshine")
    (span,) = sent.spans
    (utterance,) = (each for each in worker.spans if each.name == "utterance")
    assert (span.trace_id, span.parent_id) == (utterance.trace_id, utterance.span_id)
    assert sent.times() == {"recognise": (103.2, 103.9)} and span.kind == "server" and span.failed
    assert span.attributes == {"engine": "moonshine", "worker": "a worker", "queue_ms": 25}


@pytest.mark.parametrize(("ago_s", "lasts_s"), [(0.25, [0.25]), (-3.0, [0.0]), (RELAY_S + 1, [])])
def test_a_relay_begins_when_the_final_was_published(ago_s: float, lasts_s: list[float]) -> None:
    """The other worker's clock may be ahead, and a final that is caught up with after an hour has no span."""
    sent = Sent(now=200.0)
    told = traces(sent)
    told.on_call(CALL, 100.0)
    told.on_relayed(told.parent(CALL), NAME, timestamp(OFFSET_NS / 1e9 + 200.0 - ago_s))
    assert [round((each.end_ns - each.start_ns) / 1e9, 3) for each in sent.spans] == lasts_s
    utterance = TraceParent.parse(told.utterance(NAME))
    assert utterance is not None and all(each.parent_id == utterance.span_id for each in sent.spans)


class TracedDesk(Desk):
    """Whose events are shown at once."""

    def __init__(self, told: Traces | None) -> None:
        super().__init__()
        self.told = told
        self.registry = CallRegistry(
            parse({}), TranscriberParts(self.engine, lambda: self.now, traces=told), detector=self.detector,
            publish=self.publish, calls_changed=lambda count: self.media.wake(),
        )  # fmt: skip

    def publish(self, call_id: str, at_ms: int, body: EventBody) -> None:
        self.published.append(body)
        if self.told is not None:
            self.told.on_shown(entry(type_of(body), call_id))

    async def call(self) -> str:
        """A whole call with something said. -> its id."""
        call = self.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)], external_id="x")
        await self.play(ulaw_encode(speech("auth-thankyou")), 0, call.legs["main"].receive_rtp)
        call.end("hangup")
        return call.id


async def test_a_call_is_traced_from_its_begin_to_its_end() -> None:
    sent = Sent()
    desk = TracedDesk(Traces(sent, 1.0, clock=lambda: desk.now, offset_ns=lambda: OFFSET_NS))
    call_id = await desk.call()
    finals = desk.of(TranscriptFinal)
    utterances = [span for span in sent.spans if span.name == "utterance"]
    assert finals and [span.attributes["utterance_id"] for span in utterances] == [f.utterance_id for f in finals]
    for final, utterance in zip(finals, utterances, strict=True):
        asked, *_ = desk.engine.utterances[final.utterance_id]
        assert asked.traceparent == str(TraceParent(utterance.trace_id, utterance.span_id))
        (speech_,) = (s for s in sent.spans if s.parent_id == utterance.span_id and s.name == "speech")
        shown = [1000 * (at_s(at_ns) - 100) for at_ns in (speech_.start_ns, speech_.end_ns)]
        assert shown == pytest.approx([final.start_ms, final.end_ms], abs=1.1)
        assert utterance.attributes["latency_ms"] == final.latency_ms
    assert (sent.spans[-1].name, sent.spans[-1].attributes["call_id"]) == ("call", call_id)
    assert at_s(sent.spans[-1].start_ns) == 100.0 and at_s(sent.spans[-1].end_ns) == pytest.approx(desk.now)


async def test_without_traces_nothing_is_said_of_them() -> None:
    desk = TracedDesk(None)
    await desk.call()
    assert [asked.traceparent for asked, *_ in desk.engine.utterances.values()] == [""] * len(desk.of(TranscriptFinal))


@pytest.mark.parametrize("url", ["collector:4318", "grpc://collector:4317", "http://user:secret@collector/v1/traces"])
def test_the_url_of_a_collector_is_one_of_http(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^traces\.url.*expected http"):
        parse({"traces": {"url": url}})


def test_the_share_is_a_share() -> None:
    with pytest.raises(ConfigError, match=r"^traces\.share"):
        parse({"traces": {"share": 1.5}})
