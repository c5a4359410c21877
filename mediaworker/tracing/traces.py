"""Traces: they show where the time of a call is spent, across all machines that take part in it.

    call            ├────────────────────────────────────────────────────┤  from its first event to its last
      utterance          ├────────────────────────────────┤                 from the start of speech to its stored final
        speech           ├───────────────┤                                  until the speaker has stopped
        endpoint                         ├──────────┤                       until that is certain
        queue                              ├─┤                              the final waits for the engine
        engine                               ├────┤                         until its text has come
        recognise                          ├─────┤                          the same, as an engine server saw it
        commit                                      ├─────┤                 until it is stored and shown
        relay                                             ├──────┤          until another worker has shown it

Each span has its real times, so parts may overlap: the engine works while the endpointer still waits, and its text
becomes the final if no more speech follows. The time from the end of speech to the beginning of `commit` is the final's
`latency_ms`.

**Ids are derived.** The trace has the id of its call, and the span ids of calls and utterances are computed from their
names, so every worker knows them without communication. Whether a call is traced follows from its id as well.

A span carries names and numbers, never texts or phone numbers. This module does not depend on OpenTelemetry: `otlp`
sends the spans. All spans of an utterance are created at once when its final is stored, from times that are measured
anyway.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, Protocol
from uuid import UUID

from config.metrics.registry import MetricsRegistry
from mediaworker.events.subscription import Entry

if TYPE_CHECKING:
    from asr.messages import Answered

TRACEPARENT = "traceparent"
"""The header of W3C Trace Context."""
RELAY_S = 60.0
"""A final that arrives from another worker later than this belongs to a backlog, and gets no `relay` span."""
Kind = Literal["internal", "server", "consumer"]
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01")


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A span that may be the parent of others, in the format of W3C Trace Context. Only traced calls have one."""

    trace_id: int
    span_id: int

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"

    @classmethod
    def parse(cls, text: str) -> TraceParent | None:
        """The parsed text, or None if it is not a sampled `traceparent` of version 00."""
        found = _TRACEPARENT.fullmatch(text)
        return cls(int(found[1], 16), int(found[2], 16)) if found else None


@dataclass(frozen=True, slots=True)
class Span:
    trace_id: int
    span_id: int
    """The span's id; 0 for a random one."""
    parent_id: int
    """The parent's id; 0 for the root."""
    name: str
    start_ns: int
    """`start_ns` and `end_ns` are Unix times in nanoseconds."""
    end_ns: int
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    kind: Kind = "internal"
    failed: bool = False


@dataclass(frozen=True, slots=True)
class FinalTimes:
    """The times of an utterance that the worker has measured when it publishes the final, by the loop's clock."""

    utterance_id: str
    leg: str
    reason: str
    latency_ms: int
    start_s: float
    end_s: float
    """`start_s` and `end_s` are the start and the end of speech."""
    known_s: float | None
    """When the endpoint was decided; None if the utterance ended for another reason."""
    asked_s: float
    """When the final was requested; 0 if it never was."""
    queue_s: float
    engine_s: float
    """The duration of that request, the queue included."""
    published_s: float


class SpanSender(Protocol):
    """The sender of spans; `otlp.OtlpSender` documents its methods."""

    @property
    def counters(self) -> object: ...
    def send(self, spans: list[Span]) -> None: ...
    async def stop(self) -> None: ...


@dataclass(slots=True)
class _TracedCall:
    start_s: float
    offset_ns: int
    """The offset from the loop's clock to Unix time. It is fixed for the whole call, so that its spans keep their order
    when the system clock is changed."""
    attributes: Mapping[str, str | int]
    finals: deque[FinalTimes] = field(default_factory=deque)
    """Finals that are published but not yet stored. The hub shows them in the same order."""


class Traces:
    """Builds spans from the times that the parts of a worker, or of an engine server, report.

    Args:
        share: the fraction of calls that are traced.
        clock: the loop's clock.
        offset_ns: the difference between Unix time and `clock`, in nanoseconds.
    """

    def __init__(
        self,
        sender: SpanSender,
        share: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        offset_ns: Callable[[], int] = lambda: time.time_ns() - time.monotonic_ns(),
    ) -> None:
        self._sender, self._share, self._clock, self._offset_ns = sender, share, clock, offset_ns
        self._calls: dict[str, _TracedCall] = {}

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counters("traces", self._sender.counters)

    async def stop(self) -> None:
        """Send the queued spans; takes a few seconds at most."""
        await self._sender.stop()

    # -- a call -----------------------------------------------------------------------------------------------------

    def on_call(self, call_id: str, start_s: float, **attributes: str) -> None:
        """Begin the trace of a call, if it is traced. The trace ends when the call's last event has been shown."""
        if self.parent(call_id):
            found = {"call_id": call_id, **attributes}
            self._calls[call_id] = _TracedCall(start_s, self._offset_ns(), found)

    def parent(self, call_id: str) -> str:
        """The `traceparent` of a call's span; empty if the call is not traced."""
        trace_id = UUID(call_id).int
        # A UUIDv7 begins with the time and ends with random bits.
        if trace_id % (1 << 32) >= self._share * (1 << 32):
            return ""
        return str(TraceParent(trace_id, _span_id(call_id)))

    def utterance(self, utterance_id: str) -> str:
        """The `traceparent` of an utterance's span; empty if its call is not traced."""
        call_id = utterance_id.partition("/")[0]
        return str(TraceParent(UUID(call_id).int, _span_id(utterance_id))) if call_id in self._calls else ""

    def on_final(self, times: FinalTimes) -> None:
        """Keep the times of a final that is about to be published."""
        if (call := self._calls.get(times.utterance_id.partition("/")[0])) is not None:
            call.finals.append(times)

    def on_shown(self, entry: Entry) -> None:
        """Send the spans of a final, or of a call's end, that the hub has stored and shown to its subscribers."""
        if entry.call_id is None or (call := self._calls.get(entry.call_id)) is None:
            return
        if entry.type == "transcript.final" and call.finals:
            self._sender.send(list(_final_spans(entry.call_id, call, call.finals.popleft(), self._clock())))
        elif entry.type == "call.ended":
            del self._calls[entry.call_id]
            self._sender.send([_call_span(entry.call_id, call, self._clock())])

    # -- elsewhere --------------------------------------------------------------------------------------------------

    def on_answered(self, final: Answered, worker: str, engine: str) -> None:
        """Send the span of an engine server, whose final is on its way back to the worker that requested it."""
        if (parent := TraceParent.parse(final.traceparent)) is None:
            return
        queue_ms, offset_ns = round(final.queue_s * 1000), self._offset_ns()
        attributes: dict[str, str | int] = {"engine": engine, "worker": worker, "queue_ms": queue_ms}
        start_ns, end_ns = (offset_ns + round(at_s * 1e9) for at_s in (final.asked_s, self._clock()))
        trace_id, above, failed = parent.trace_id, parent.span_id, final.failed
        self._sender.send([Span(trace_id, 0, above, "recognise", start_ns, end_ns, attributes, "server", failed)])

    def on_relayed(self, traceparent: str, utterance_id: str, published_at: str) -> None:
        """Send the span of another worker's final that has been shown here.

        `traceparent` is that of its call, and `published_at` the time of its publication (RFC 3339).
        """
        if (parent := TraceParent.parse(traceparent)) is None:
            return
        now_ns = self._offset_ns() + round(self._clock() * 1e9)
        begin_ns = round(datetime.fromisoformat(published_at).timestamp() * 1000) * 1_000_000
        if now_ns - begin_ns < RELAY_S * 1e9:
            span_id, attributes = _span_id(utterance_id), {"utterance_id": utterance_id}
            begin_ns = min(begin_ns, now_ns)
            self._sender.send([Span(parent.trace_id, 0, span_id, "relay", begin_ns, now_ns, attributes, "consumer")])


def _call_span(call_id: str, call: _TracedCall, shown_s: float) -> Span:
    start_ns, end_ns = (call.offset_ns + round(at_s * 1e9) for at_s in (call.start_s, shown_s))
    return Span(UUID(call_id).int, _span_id(call_id), 0, "call", start_ns, end_ns, call.attributes)


def _final_spans(call_id: str, call: _TracedCall, final: FinalTimes, shown_s: float) -> Iterator[Span]:
    """The spans of an utterance and its parts.

    A client that sends faster than real time produces speech that ends in the future; such times are cut at `shown_s`.
    """
    trace_id, span_id = UUID(call_id).int, _span_id(final.utterance_id)

    def at_ns(at_s: float) -> int:
        return call.offset_ns + round(max(call.start_s, min(at_s, shown_s)) * 1e9)

    failed = final.reason == "failed"
    attributes: dict[str, str | int] = {
        "call_id": call_id,
        "leg": final.leg,
        "utterance_id": final.utterance_id,
        "reason": final.reason,
        "latency_ms": final.latency_ms,
    }
    start_ns, end_ns = at_ns(final.start_s), at_ns(shown_s)
    yield Span(trace_id, span_id, _span_id(call_id), "utterance", start_ns, end_ns, attributes, failed=failed)
    parts = [("speech", final.start_s, final.end_s), ("commit", final.published_s, shown_s)]
    if final.known_s is not None:
        parts.append(("endpoint", final.end_s, final.known_s))
    if final.asked_s:
        begun_s = final.asked_s + min(final.queue_s, final.engine_s)
        parts += [("queue", final.asked_s, begun_s), ("engine", begun_s, final.asked_s + final.engine_s)]
    for name, from_s, to_s in parts:
        if to_s > from_s:
            yield Span(trace_id, 0, span_id, name, at_ns(from_s), at_ns(to_s))


def _span_id(name: str) -> int:
    """A span id computed from a name, and never 0, which is no valid id."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) or 1
