"""What holds of a call's durable events, whatever happened to the worker meanwhile."""

from __future__ import annotations

from typing import Any


def check_story(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A call's durable events keep every promise of the protocol; returns its finals."""
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "call.started" and events[-1]["type"] == "call.ended"
    check_clock(events)
    started = [event["utterance_id"] for event in events if event["type"] == "speech.started"]
    finals = [event for event in events if event["type"] == "transcript.final"]
    assert sorted(started) == sorted(final["utterance_id"] for final in finals)
    assert len(set(started)) == len(started)
    words = {event["utterance_id"]: event["words"] for event in events if event["type"] == "transcript.words"}
    assert all(words.values()) and set(words) <= set(started)
    assert [event["type"] for event in events].count("metrics") == 1 and events[-2]["type"] == "metrics"
    for leg in {final["leg"] for final in finals}:
        starts = [final["start_ms"] for final in finals if final["leg"] == leg]
        assert starts == sorted(starts), "in the order in which they were spoken"
    for final in finals:
        kinds = [event["type"] for event in events if event.get("utterance_id") == final["utterance_id"]]
        timed = ["transcript.words"] * (final["utterance_id"] in words)
        assert "alert" not in kinds[: kinds.index("transcript.final")], "a rule is about a final"
        kinds = [kind for kind in kinds if kind != "alert"]
        assert kinds == ["speech.started", "speech.ended", "transcript.final", *timed]
        check_words(final, words.get(final["utterance_id"], []))
    return finals


def check_clock(events: list[dict[str, Any]]) -> None:
    """A call has one clock: it never goes back, nothing is told before it was heard, and it ends with the call."""
    times = [event["at_ms"] for event in events]
    assert times == sorted(times)
    assert all(event.get(edge, 0) <= event["at_ms"] for event in events for edge in ("start_ms", "end_ms"))
    ended, metrics = events[-1], events[-2]
    assert max(event.get("end_ms", 0) for event in events) <= ended["duration_ms"] <= ended["at_ms"]
    assert all(talk <= ended["duration_ms"] for talk in metrics["talk_ms"].values())


def check_words(final: dict[str, Any], words: list[dict[str, Any]]) -> None:
    """Those of its text, one after the other, while it was spoken."""
    at, time = 0, final["start_ms"]
    for word in words:
        at = final["text"].index(word["word"], at) + len(word["word"])
        assert time <= word["start_ms"] <= word["end_ms"] <= final["end_ms"]
        assert 0 <= word["confidence"] <= 1
        time = word["end_ms"]
