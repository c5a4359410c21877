"""Where the time goes between the end of speech and its final, and how the media tick keeps up.

Per utterance and per tick, never per packet. The parts follow each other and add up:

| part | from → to |
|---|---|
| `endpoint` | end of speech → end of the window that made the endpointer sure: the configured silence, in audio time |
| `reorder` | that window's end → its tick: the wait for late packets, and for the tick |
| `vad` | the tick's begin → the endpoint is known |
| `queue` | → the engine begins with what was still to be decoded; 0 when the speculative final was ready |
| `engine` | → the hypothesis is here, its way between the processes included |
| `commit` | the final is published → it is on disk |
| `fan_out` | → it waits at every subscriber's socket |
"""

from __future__ import annotations

from dataclasses import dataclass, field

from config.metrics.counters import Histogram, histogram
from config.metrics.registry import MetricsRegistry

PARTS = ("endpoint", "reorder", "vad", "queue", "engine", "commit", "fan_out")
TICK_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
JITTER_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, slots=True)
class EndpointTimes:
    """The moment in which an utterance's end was known, and what it had taken until then."""

    known_s: float
    silence_s: float
    reorder_s: float
    vad_s: float


@dataclass(slots=True)
class LatencyParts:
    """Histograms over all finals that end at an endpoint; those cut by hang-up or length have no such parts."""

    parts: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram() for name in PARTS if name not in ("commit", "fan_out")}
    )
    """The hub measures the other two, where they happen."""
    final: Histogram = histogram("final_latency_seconds", "Measures the time from the true end of speech to its final.")
    queue: Histogram = histogram(
        "asr_queue_seconds", "Measures how long the request for a final waits before the engine begins with it."
    )
    """This and `decode` are of the hypotheses that became finals, speculative or not."""
    decode: Histogram = histogram(
        "asr_decode_seconds",
        "Measures how long the engine takes for a final, from when it begins until the text arrives.",
    )
    words: Histogram = histogram(
        "words_seconds", "Measures the time from a final until the times of its words arrived."
    )
    words_queue: Histogram = histogram(
        "words_queue_seconds", "Measures how long the words of a final wait before the aligner begins with them."
    )
    stall: Histogram = histogram(
        "loop_stall_seconds",
        "Measures how late media ticks begin because of other work on the event loop.",
        TICK_BOUNDS_S,
    )
    vad_lag: Histogram = histogram(
        "vad_lag_seconds",
        "Measures the time from when a media tick was due until the VAD of its last window.",
        TICK_BOUNDS_S,
    )
    jitter: Histogram = histogram(
        "leg_jitter_seconds",
        "Measures the interarrival jitter (RFC 3550) of each leg at the end of its call.",
        JITTER_BOUNDS_S,
    )
    _tick_s: float | None = None

    def add_metrics(self, metrics: MetricsRegistry, *, commit: Histogram, fan_out: Histogram) -> None:
        metrics.counters("latency", self)
        metrics.histogram(
            "final_latency_part_seconds",
            "Measures the parts of the time from the end of speech to its final and on to the subscribers.",
            self.parts | {"commit": commit, "fan_out": fan_out},
            "part",
        )

    def tick(self, ready_s: float, now_s: float) -> None:
        """A media tick begins, that might have begun then."""
        self._tick_s = now_s
        self.stall.observe(max(0.0, now_s - ready_s))

    def ticked(self, due_s: float, now_s: float) -> None:
        """The last window of a tick that was due then is through the VAD."""
        self.vad_lag.observe(max(0.0, now_s - due_s))

    def endpoint(self, *, speech_end_s: float, window_end_s: float, now_s: float) -> EndpointTimes:
        """An utterance's end is known now; both times are the leg's, on the loop's clock."""
        tick_s = now_s if self._tick_s is None else min(self._tick_s, now_s)
        return EndpointTimes(
            known_s=now_s,
            silence_s=max(0.0, window_end_s - speech_end_s),
            reorder_s=max(0.0, tick_s - window_end_s),
            vad_s=now_s - max(tick_s, window_end_s) if now_s > window_end_s else 0.0,
        )

    def finished(
        self, endpoint: EndpointTimes | None, *, latency_s: float, queue_s: float, engine_s: float, now_s: float
    ) -> None:
        """The final is published. `queue_s` and `engine_s` are what the hypothesis took since it was asked for."""
        self.final.observe(latency_s)
        self.queue.observe(queue_s)
        self.decode.observe(max(0.0, engine_s - queue_s))
        if endpoint is None:
            return
        waited_s = max(0.0, now_s - endpoint.known_s)
        decoding_s = min(waited_s, max(0.0, engine_s - queue_s))
        for name, value in (
            ("endpoint", endpoint.silence_s),
            ("reorder", endpoint.reorder_s),
            ("vad", endpoint.vad_s),
            ("queue", waited_s - decoding_s),
            ("engine", decoding_s),
        ):
            self.parts[name].observe(value)
