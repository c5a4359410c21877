"""Wrong keys are slowed by source, in bounded memory."""

from __future__ import annotations

import pytest
import structlog

from mediaworker.access.auth_failures import FREE, GUESSES_PER_S, MAX_DELAY_S, MAX_SOURCES, AuthFailures


def test_guesses_are_slowed_and_forgotten() -> None:
    failures, now = AuthFailures(), 1000.0
    for _ in range(FREE):
        assert failures.record("unknown_key", "192.0.2.1", "/v1/calls", now) == 0
    delays = [failures.record("unknown_key", "192.0.2.1", "/v1/calls", now) for _ in range(20)]
    assert delays[:3] == [1.0, 2.0, 3.0] and set(delays[3:]) == {MAX_DELAY_S}
    assert failures.record("unknown_key", "192.0.2.2", "/v1/calls", now) == 0, "another source"
    for reason in ("no_key", "scope", "not_local", "call_token"):  # no guesses
        assert failures.record(reason, "192.0.2.1", "/v1/calls", now) == 0
    assert failures.record("unknown_key", "192.0.2.1", "/v1/calls", now + 60) == 0
    # One by one, whoever waits for each answer.
    for _ in range(100):
        now += failures.record("unknown_key", "2001:db8::1", "/", now)
    assert now >= 1000.0 + 0.7 * (100 - FREE) / GUESSES_PER_S["unknown_key"]
    assert failures.record("unknown_key", "2001:db8::2", "/", now) > 0, "one /64 is one source"
    assert failures.counts["unknown_key"] == FREE + 20 + 2 + 100 + 1


def test_many_sources_do_not_fill_the_memory() -> None:
    failures = AuthFailures()
    for number in range(MAX_SOURCES + 100):
        failures.record("unknown_key", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "/", 1000.0)
    assert failures.record("unknown_key", "192.0.2.1", "/", 1000.0) > 0, "those beyond share one place"
    assert failures.record("unknown_key", "192.0.2.1", "/", 2000.0) == 0


def test_wrong_signatures_are_slowed_by_the_work_that_they_are() -> None:
    failures = AuthFailures()
    for _ in range(FREE):
        assert failures.record("signature", "192.0.2.1", "/twilio/voice", 5.0) == 0
    assert failures.record("signature", "192.0.2.1", "/twilio/voice", 5.0) == pytest.approx(0.02)
    assert failures.record("unknown_key", "192.0.2.1", "/", 5.0) == 0, "each reason has its own count"
    assert failures.record("signature", "192.0.2.1", "/twilio/voice", 6.0) == 0


def test_a_failure_is_logged_unless_the_caller_does_it() -> None:
    failures = AuthFailures()
    with structlog.testing.capture_logs() as lines:
        failures.record("scope", "192.0.2.1", "/v1/calls", 0.0, logged=True)
        assert not lines
        failures.record("scope", "192.0.2.1", "/v1/calls", 0.0)
        failures.record("scope", "192.0.2.1", "/v1/calls", 1.0)
    assert len(lines) == 1 and "/v1/calls: the key lacks the scope" in str(lines[0])
    assert failures.counts["scope"] == 3
