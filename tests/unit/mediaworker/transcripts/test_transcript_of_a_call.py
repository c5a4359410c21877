"""Transcripts and metrics: names of speakers, well-formed cues, and the bounds of a histogram."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.metrics.counters import Histogram, counter, counter_by
from config.metrics.registry import MetricsRegistry
from lab.events.samples import final, started
from mediaworker.events.call_record import apply
from mediaworker.events.frame import encode, timestamp
from mediaworker.events.schema import CallRecord, Event
from mediaworker.ops.exposition import exposition
from mediaworker.transcripts.call import render, segments


def test_a_histogram_counts_at_its_bounds() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.0, 0.1, 0.5, 1.0, 7.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("0.1", 2.0), ("1.0", 4.0), ("+Inf", 5.0)]
    assert histogram.sum == pytest.approx(8.6)


def test_counters_are_read_from_their_owner() -> None:
    @dataclass(slots=True)
    class LegCounters:
        packets: int = counter("RTP packets")
        lost: int = counter("RTP packets that never came", name="packets_lost")
        refused: Counter[int] = counter_by("status", "Refusals")
        unseen: int = 7

    metrics, leg = MetricsRegistry(), LegCounters(packets=3, lost=1)
    metrics.counters("rtp", leg)
    metrics.gauge("sip_registered", "By account", lambda: {"pbx": True}, "account")
    metrics.gauge("sip_ports", "By account and port", lambda: {("pbx", "5060"): 2}, "account", "port")
    leg.packets = 4
    leg.refused[486] += 2
    text = exposition(metrics)[0].decode()
    assert "mediaworker_rtp_packets_total 4.0" in text
    assert "mediaworker_packets_lost_total 1.0" in text
    assert 'mediaworker_rtp_refused_total{status="486"} 2.0' in text
    assert 'mediaworker_sip_ports{account="pbx",port="5060"} 2.0' in text
    assert "# HELP mediaworker_rtp_packets_total RTP packets\n" in text and "unseen" not in text
    assert 'mediaworker_sip_registered{account="pbx"} 1.0' in text
    with pytest.raises(AssertionError, match="twice"):
        metrics.counters("rtp", LegCounters())


def record() -> CallRecord:
    return apply(None, Event("s:1", "c1", 1, 0, timestamp(0), started()))


SAID = st.text(max_size=40) | st.text("->\n x", max_size=12)


@given(st.lists(st.tuples(SAID, st.integers(-5, 10**8), st.integers(-5, 10**8)), max_size=6))
def test_any_text_makes_well_formed_cues(spoken: list[tuple[str, int, int]]) -> None:
    frames = [
        encode(Event("s:1", "c1", n, 0, "", final(f"u{n}", text, start_ms=start, end_ms=end)))
        for n, (text, start, end) in enumerate(spoken)
    ]
    found = segments(record(), frames)
    count = sum(bool(text.strip()) for text, *_ in spoken)
    assert [segment.start_ms for segment in found] == sorted(start for _, start, _ in spoken)
    txt, srt, vtt = (render(record(), found, format) for format in ("txt", "srt", "vtt"))
    assert txt.count("\n") == count
    time = r"\d{2,}:\d\d:\d\d[.,]\d{3}"
    for text, head in ((srt, ""), (vtt, "WEBVTT\n")):
        assert text.startswith(head)
        blocks = [block.strip("\n").split("\n") for block in text[len(head) :].split("\n\n") if block.strip("\n")]
        assert len(blocks) >= count
        for block in blocks:
            (cue,) = [row for row in block if "-->" in row]
            match = re.fullmatch(rf"({time}) --> ({time})", cue)
            assert match
            assert match[1] < match[2] or len(match[1]) < len(match[2])
            assert 1 <= len(block) - 1 - block.index(cue) <= 2


def test_a_speaker_is_named_by_the_best_that_is_known() -> None:
    frame = encode(Event("s:1", "c1", 1, 0, "", final("u1", leg="third", role="unknown")))
    assert segments(record(), [frame])[0].speaker == "third"
    frame = encode(Event("s:1", "c1", 1, 0, "", final("u1", leg="outbound", role="agent")))
    assert segments(record(), [frame])[0].speaker == "agent"


def test_the_json_of_a_call_has_every_final_and_who_said_it() -> None:
    record = None
    said = [
        final("u1", "hello", leg="outbound", role="agent", start_ms=900, end_ms=1200),
        final("u2", "", start_ms=100),
    ]
    bodies = [started(), *said]
    for seq, body in enumerate(bodies, 1):
        record = apply(record, Event("s:1", "c1", seq, seq * 100, timestamp(seq), body))
    assert record is not None
    frames = [encode(Event("s:1", "c1", seq, 0, timestamp(seq), body)) for seq, body in enumerate(said, 2)]
    found = segments(record, [*frames, "damaged"])
    document = json.loads(render(record, found, "json"))
    assert (document["call_id"], document["state"]) == ("c1", "live")
    (told,) = [value for value in document.values() if isinstance(value, list)]
    assert [(each["utterance_id"], each["speaker"], each["text"]) for each in told] == [
        ("u2", "Bea", ""), ("u1", "agent", "hello"),
    ]  # fmt: skip
    assert "hello" in render(record, found, "txt") and "-->" in render(record, found, "srt")
    assert render(record, found, "vtt").startswith("WEBVTT")
