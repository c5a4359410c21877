"""Queries, and the link that opens the page once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from config.metrics.counters import Histogram, counter, counter_by, histogram
from config.metrics.registry import MetricsRegistry
from mediaworker.access.page_sessions import MAX_SESSIONS, PageSessions
from mediaworker.http.problem import Problem
from mediaworker.http.requests import LIMIT_DEFAULT, LIMIT_MAX, choice, page_limit
from mediaworker.ops.exposition import exposition


@pytest.mark.parametrize(("text", "limit"), [(None, LIMIT_DEFAULT), ("1", 1), ("007", 7), (str(LIMIT_MAX), LIMIT_MAX)])
def test_a_limit(text: str | None, limit: int) -> None:
    assert page_limit(text) == limit


@pytest.mark.parametrize("text", ["", "0", "-1", "1.0", "٣", " 5", str(LIMIT_MAX + 1), "00001", "x"])
def test_no_limit(text: str) -> None:
    with pytest.raises(Problem, match="limit must be a number from 1 to 500") as wrong:
        page_limit(text)
    assert wrong.value.status == 400


def test_a_choice() -> None:
    assert choice("state", None, ("a", "b")) is None and choice("state", "b", ("a", "b")) == "b"
    with pytest.raises(Problem, match="state must be one of a, b") as wrong:
        choice("state", "c", ("a", "b"))
    assert wrong.value.status == 400


def test_a_link_opens_the_page_once() -> None:
    used: list[str] = []
    sessions = PageSessions(lambda: used.append(sessions.token))
    token = sessions.token
    assert len(token) == 32 and sessions.keys == ()
    assert sessions.redeem("") is sessions.redeem(token[:-1]) is sessions.redeem("ä") is None and not used
    key = sessions.redeem(token)
    assert key is not None and len(key) == 32 and key != token and sessions.keys == (key,)
    assert used == [sessions.token] and sessions.token != token and sessions.redeem(token) is None


def test_the_oldest_page_is_forgotten() -> None:
    sessions = PageSessions()
    keys = [sessions.redeem(sessions.token) for _ in range(MAX_SESSIONS + 2)]
    assert list(sessions.keys) == keys[2:] and MAX_SESSIONS == 16


def test_every_field_with_a_help_text_is_in_a_scrape() -> None:
    @dataclass
    class Figures:
        calls: int = counter("Counts calls.")
        refused: Counter[str] = counter_by("reason", "Counts refusals.", name="refusals")
        wait: Histogram = histogram("wait_seconds", "Measures waits.", (0.5, 1.0))
        private: int = 7

    figures, registry = Figures(calls=3), MetricsRegistry()
    figures.refused["full"] += 2
    figures.wait.observe(0.25)
    figures.wait.observe(9.0)
    registry.counters("door", figures)
    registry.gauge("open", "Shows what is open.", lambda: 5)
    text = exposition(registry)[0].decode()
    for line in (
        "mediaworker_door_calls_total 3.0", 'mediaworker_refusals_total{reason="full"} 2.0', "mediaworker_open 5.0",
        'mediaworker_wait_seconds_bucket{le="0.5"} 1.0', 'mediaworker_wait_seconds_bucket{le="1.0"} 1.0',
        'mediaworker_wait_seconds_bucket{le="+Inf"} 2.0', "mediaworker_wait_seconds_sum 9.25",
    ):  # fmt: skip
        assert line in text.splitlines(), line
    assert "private" not in text
    assert sorted((each.name, each.kind, *each.labels, each.help) for each in registry) == [
        ("mediaworker_door_calls_total", "counter", "Counts calls."),
        ("mediaworker_open", "gauge", "Shows what is open."),
        ("mediaworker_refusals_total", "counter", "reason", "Counts refusals."),
        ("mediaworker_wait_seconds", "histogram", "Measures waits."),
    ]
