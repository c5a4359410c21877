"""Latency histograms: the parts of the time from the end of speech to its final, and the lag of the media tick.

They are recorded per utterance and per tick, never per packet. The parts follow each other and add up:

| part | from → to |
|---|---|
| `endpoint` | end of speech → end of the window that decided the endpoint: the configured silence, in audio time |
| `reorder` | that window's end → its tick: the wait for late packets, and for the tick |
| `vad` | the tick's begin → the endpoint is known |
| `queue` | → the engine begins to decode the rest of the audio; 0 when the speculative final was ready |
| `engine` | → the hypothesis has arrived, the transfer between the processes included |
| `commit` | the final is published → it is on disk |
| `fan_out` | → it has been queued for every subscriber's socket |
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
    """When the end of an utterance was decided (`known_s`), and the durations of the parts until then."""

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
    """The parts but `commit` and `fan_out`, which the hub measures."""
    final: Histogram = histogram("final_latency_seconds", "Measures the time from the true end of speech to its final.")
    queue: Histogram = histogram(
        "asr_queue_seconds", "Measures how long the request for a final waits before the engine begins with it."
    )
    """`queue` and `decode` count the hypotheses that became finals, speculative or not."""
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
        """Record that a media tick begins at `now_s`, which could have begun at `ready_s`."""
        self._tick_s = now_s
        self.stall.observe(max(0.0, now_s - ready_s))

    def ticked(self, due_s: float, now_s: float) -> None:
        """Record that the VAD has processed the last window of the tick that was due at `due_s`."""
        self.vad_lag.observe(max(0.0, now_s - due_s))

    def endpoint(self, *, speech_end_s: float, window_end_s: float, now_s: float) -> EndpointTimes:
        """The times of an endpoint that is decided now; the leg's times are converted to the loop's clock."""
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
        """Record a published final. `queue_s` and `engine_s` count from the request for its hypothesis."""
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
