"""Latency of finals and its parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.metrics.counters import Histogram
from config.metrics.registry import MetricsRegistry
from mediaworker.ops.exposition import exposition
from mediaworker.tracing.latency import LatencyParts

seconds = st.floats(0, 30, allow_nan=False)


@given(seconds, seconds, seconds, seconds, seconds, seconds)
def test_the_parts_add_up(
    silence_s: float, reorder_s: float, vad_s: float, waited_s: float, queue_s: float, decode_s: float
) -> None:
    latency, end_s = LatencyParts(), 100.0
    window_s = end_s + silence_s
    tick_s = window_s + reorder_s
    known_s = tick_s + vad_s
    latency.tick(tick_s, tick_s)
    endpoint = latency.endpoint(speech_end_s=end_s, window_end_s=window_s, now_s=known_s)
    now_s = known_s + waited_s
    latency.finished(endpoint, latency_s=now_s - end_s, queue_s=queue_s, engine_s=queue_s + decode_s, now_s=now_s)
    sums = {name: histogram.sum for name, histogram in latency.parts.items()}
    assert sum(sums.values()) == pytest.approx(latency.final.sum, abs=1e-6)
    assert sums["endpoint"] == pytest.approx(silence_s, abs=1e-6) and sums["reorder"] == pytest.approx(
        reorder_s, abs=1e-6
    )
    assert sums["engine"] == pytest.approx(min(waited_s, decode_s), abs=1e-6)
    assert all(value >= 0 for value in sums.values())


def test_what_did_not_end_at_an_endpoint_has_a_latency_and_no_parts() -> None:
    latency = LatencyParts()
    latency.finished(None, latency_s=0.7, queue_s=0.1, engine_s=0.3, now_s=5.0)
    assert latency.final.sum == 0.7 and sum(sum(part.counts) for part in latency.parts.values()) == 0
    assert latency.queue.sum == 0.1 and latency.decode.sum == pytest.approx(0.2)


def test_a_window_ahead_of_the_clock_is_no_negative_time() -> None:
    """A stream client may be ahead of real time: its window ends in the future."""
    latency = LatencyParts()
    latency.tick(10.0, 10.0)
    endpoint = latency.endpoint(speech_end_s=10.2, window_end_s=10.7, now_s=10.01)
    assert (endpoint.reorder_s, endpoint.vad_s) == (0.0, 0.0)


def test_a_histogram_has_one_row_per_label() -> None:
    metrics, parts = MetricsRegistry(), {"a": Histogram((1.0,)), "b": Histogram((1.0,))}
    metrics.histogram("x_seconds", "X", parts, "part")
    parts["b"].observe(0.5)
    text = exposition(metrics)[0].decode()
    assert 'mediaworker_x_seconds_count{part="b"} 1.0' in text and 'mediaworker_x_seconds_count{part="a"} 0.0' in text
    assert [(each.name, each.kind, each.labels) for each in metrics] == [
        ("mediaworker_x_seconds", "histogram", ("part",))
    ]


def test_a_stall_is_how_late_a_tick_begins_and_a_lag_how_late_its_windows_are_through() -> None:
    latency = LatencyParts()
    latency.tick(10.0, 10.25)
    latency.tick(11.0, 10.5)
    latency.ticked(10.0, 10.5)
    latency.ticked(11.0, 10.5)
    assert (latency.stall.sum, latency.vad_lag.sum) == (0.25, 0.5) and sum(latency.stall.counts) == 2
    without_tick = LatencyParts().endpoint(speech_end_s=1.0, window_end_s=2.0, now_s=2.5)
    assert (without_tick.silence_s, without_tick.reorder_s, without_tick.vad_s) == (1.0, 0.5, 0.0)
