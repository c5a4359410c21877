"""The sender of spans to an OTLP collector, through OpenTelemetry's SDK. Loaded only if `traces.url` is set.

The event loop creates spans and puts them into the SDK's queue; a thread of the SDK sends them in batches. Nothing in
the worker waits for the collector: while too many spans are queued, further ones are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from config.log.rate_limit import LogRateLimit
from config.metrics.counters import counter
from mediaworker.tracing.traces import Span

WAITING = 2048
"""The most spans that may wait: 6 MB, or three seconds of a thousand legs."""
BATCH = 32
"""The spans per request. While the SDK's thread encodes them, the loop waits for the interpreter's lock: with 512 spans
timers were up to 33 ms late (a media tick), with 32 up to 4 ms. In return a final costs a third more CPU time."""
STOP_S = 3.0
"""How long the shutdown waits for the collector."""
KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "consumer": SpanKind.CONSUMER}
log = structlog.get_logger("traces")


@dataclass(slots=True)
class SpanCounters:
    sent_spans: int = counter("Counts spans that the collector of traces has taken.")
    failed_spans: int = counter(
        "Counts spans that were lost because the collector refused them or did not take them in time."
    )
    dropped_spans: int = counter("Counts spans that were not made because too many waited for the collector.")


class OtlpSender:
    """Sends spans as the module describes.

    It follows the standard variables of OpenTelemetry: `OTEL_EXPORTER_OTLP_HEADERS`, `…_TIMEOUT`, `…_COMPRESSION` and
    `…_CERTIFICATE`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`, `OTEL_BSP_SCHEDULE_DELAY`.
    """

    def __init__(self, url: str, service: str, port: int) -> None:
        """`service` and `port` identify this process in the traces, together with the host."""
        release = version("mediaworker")
        names = Resource.create(
            {
                "service.name": service,
                "service.instance.id": f"{socket.gethostname()}:{port}",
                "service.version": release,
            }
        )
        self.counters = SpanCounters()
        self._made = 0
        self._ids = _Ids()
        _log_complaints()
        self._exporter = _CountingExporter(OTLPSpanExporter(endpoint=url), self.counters)
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # which calls are traced has been decided
            resource=names.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(self._exporter, max_queue_size=WAITING, max_export_batch_size=BATCH)
        )
        self._tracer = self._provider.get_tracer("mediaworker", release)

    def send(self, spans: Sequence[Span]) -> None:
        """Queue all of the spans or none, since half an utterance would mislead. Errors are logged, not raised."""
        if self._made - self._exporter.taken + len(spans) > WAITING:
            self.counters.dropped_spans += len(spans)
            return
        self._made += len(spans)
        try:
            for span in spans:
                self._make(span)
        except Exception:
            log.exception("a span could not be made")

    def _make(self, span: Span) -> None:
        self._ids.trace_id, self._ids.span_id = span.trace_id, span.span_id
        made = self._tracer.start_span(
            span.name,
            context=_under(span.trace_id, span.parent_id) if span.parent_id else Context(),
            kind=KINDS[span.kind],
            attributes=span.attributes,
            start_time=span.start_ns,
        )
        if span.failed:
            made.set_status(Status(StatusCode.ERROR))
        made.end(span.end_ns)

    async def stop(self) -> None:
        """Send the queued spans within STOP_S. Spans that remain then are lost, which is logged."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop did not wait any longer, and is closed
                loop.call_soon_threadsafe(done.set)

        # A daemon thread, for which the exit of the process does not wait: the SDK itself waits for half a minute.
        threading.Thread(target=shut_down, name="traces-stop", daemon=True).start()
        try:
            async with asyncio.timeout(STOP_S):
                await done.wait()
        except TimeoutError:
            lost = self._made - self.counters.sent_spans - self.counters.failed_spans
            log.warning("the collector of traces has not taken the last spans", spans=lost)


class _CountingExporter(SpanExporter):
    """An exporter that counts spans. It runs on the SDK's thread, the only one that writes its numbers."""

    def __init__(self, exporter: SpanExporter, counters: SpanCounters) -> None:
        self.taken = 0
        """The number of spans that have left the queue."""
        self._exporter, self._counters = exporter, counters

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._counters.sent_spans += len(spans)
        else:
            self._counters.failed_spans += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Ids(RandomIdGenerator):
    """The id generator of the SDK, which returns the ids set for the next span."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id or super().generate_span_id()

    def is_trace_id_random(self) -> bool:
        """A trace id begins with the time of its call."""
        return False


class _Complaints(logging.Handler):
    """Forwards the warnings of the SDK, which logs one per failed batch, at most once a minute."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._limit = LogRateLimit()

    def emit(self, record: logging.LogRecord) -> None:
        if (others := self._limit.due("sdk", time.monotonic())) is not None:
            log.warning("traces cannot be sent", reason=record.getMessage(), others=others)


def _log_complaints() -> None:
    logger = logging.getLogger("opentelemetry")
    logger.propagate, logger.handlers = False, [_Complaints()]


def _under(trace_id: int, span_id: int) -> Context:
    parent = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(parent), Context())
