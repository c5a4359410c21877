"""Who is let in to the SIP port, decided without a socket."""

from __future__ import annotations

import tracemalloc
from itertools import count

import pytest

from config.log.rate_limit import LogRateLimit
from lab.sip.headers import FRIEND, STRANGER, request
from sip.admission import request_filter as request_filter_module
from sip.admission.request_filter import (
    DROP,
    FIRST_MESSAGE_S,
    PASS,
    RETRY_S,
    UNTRUSTED_BURST,
    UNTRUSTED_TCP_S,
    ConnectionTable,
    RequestFilter,
    RequestHead,
    TokenBuckets,
)


def request_filter(refusal: int = 0, per_s: float = 5.0) -> tuple[RequestFilter, list[int]]:
    status = [refusal]
    return RequestFilter(lambda source: source == FRIEND, lambda: status[0], invites_per_s=per_s), status


def test_a_stranger_is_told_a_few_times_and_then_not_answered() -> None:
    filter_, _ = request_filter()
    verdicts = [filter_.check(request(method, STRANGER), 0.0) for method in ("INVITE", "OPTIONS", "REGISTER") * 1000]
    assert verdicts == [403] * UNTRUSTED_BURST + [DROP] * (3000 - UNTRUSTED_BURST)
    assert filter_.check(request(source=STRANGER), 5.1) == 403
    assert filter_.check(request(source="203.0.113.6"), 0.0) == 403
    assert filter_.check(request("ACK", "203.0.113.7"), 0.0) == DROP


def test_within_a_dialog_others_may_speak_but_not_flood() -> None:
    filter_, _ = request_filter()
    verdicts = [filter_.check(request("BYE", STRANGER, tag="x"), 0.0) for _ in range(1000)]
    assert verdicts.count(PASS) == 50
    assert filter_.check(request("BYE", STRANGER, tag="x"), 1.0) == PASS


def test_calls_from_one_address_have_a_rate() -> None:
    filter_, _ = request_filter(per_s=5.0)
    assert [filter_.check(request(), 0.0) for _ in range(12)] == [PASS] * 10 + [503] * 2
    assert filter_.check(request(), 0.21) == PASS
    unlimited, _ = request_filter(per_s=0.0)
    assert all(unlimited.check(request(), 0.0) == PASS for _ in range(1000))


def test_a_repetition_of_what_was_let_in_is_let_in_though_the_worker_is_full() -> None:
    filter_, refusal = request_filter(per_s=1.0)
    assert filter_.check(request(branch="a"), 0.0) == PASS
    refusal[0] = 486
    assert filter_.check(request(branch="b"), 0.0) == 486
    assert filter_.check(request(branch="a"), 30.0) == PASS
    assert filter_.check(request(branch="a"), RETRY_S) == 486
    assert filter_.check(request(tag="in-dialog"), 30.0) == PASS
    assert filter_.check(request("OPTIONS"), 30.0) == PASS


def test_connections_are_counted_and_those_that_say_nothing_go() -> None:
    connections = ConnectionTable(lambda peer: peer == FRIEND, 100)
    handles = count(1)
    assert all(connections.add(next(handles), STRANGER, 0.0) for _ in range(16))
    refused = next(handles)
    assert not connections.add(refused, STRANGER, 0.0)
    connections.remove(refused)
    assert sum(connections.add(next(handles), f"203.0.113.{n}", 0.0) for n in range(50, 90)) == 25 - 16
    friends = [next(handles) for _ in range(100 - len(connections))]
    assert all(connections.add(handle, FRIEND, 0.0) for handle in friends)
    assert not connections.add(next(handles), FRIEND, 0.0)
    connections.on_message(1)
    connections.on_message(friends[0])
    assert connections.expired(FIRST_MESSAGE_S) == []
    late = connections.expired(FIRST_MESSAGE_S + 0.1)
    assert 1 not in late and friends[0] not in late and len(late) == len(connections) - 2
    assert 1 in connections.expired(UNTRUSTED_TCP_S + 0.1) and friends[0] not in connections.expired(
        UNTRUSTED_TCP_S + 0.1
    )


def test_a_stranger_has_a_whole_network_of_ipv6() -> None:
    filter_, _ = request_filter()
    sources = (f"2001:db8::{n:x}:{n:x}" for n in range(1, 1001))
    verdicts = [filter_.check(request(source=source), 0.0) for source in sources]
    assert verdicts == [403] * UNTRUSTED_BURST + [DROP] * (1000 - UNTRUSTED_BURST)
    within = [filter_.check(request("BYE", f"2001:db8::{n:x}", tag="x"), 0.0) for n in range(1, 101)]
    assert within.count(PASS) == 50
    assert filter_.check(request(source="2001:db8:0:1::1"), 0.0) == 403, "the neighbours' network"
    connections = ConnectionTable(lambda peer: peer == FRIEND, 1000)
    assert [connections.add(n, f"2001:db8::{n:x}", 0.0) for n in range(1, 18)] == [True] * 16 + [False]
    assert connections.add(18, "2001:db8:0:1::1", 0.0)


def test_who_is_on_the_list_is_one_address_of_its_network() -> None:
    friends = {"2001:db8::1", "2001:db8::2"}
    filter_ = RequestFilter(lambda source: source in friends, lambda: 0, invites_per_s=1.0)
    verdicts = [filter_.check(request(source=friend), 0.0) for friend in sorted(friends) for _ in range(3)]
    assert verdicts == [PASS, PASS, 503] * 2
    connections = ConnectionTable(lambda peer: peer in friends, 100)
    assert all(connections.add(n, "2001:db8::1", 0.0) for n in range(50))


def test_who_has_shown_credentials_may_come_back_from_another_address_of_its_network() -> None:
    filter_ = RequestFilter(lambda source: False, lambda: 0, invites_per_s=5.0)
    shown = request(source="2001:db8::1")
    assert filter_.check(shown, 0.0, lambda: ("good", "branch")) == PASS
    asked = [filter_.check(request(source="2001:db8::2"), 100.0, lambda: ("none", "")) for _ in range(UNTRUSTED_BURST)]
    assert asked == [401] * 10 and filter_.check(request(source="2001:db8::3"), 101.0, lambda: ("none", "")) == 401
    assert filter_.user_of(shown.call_id, "2001:db8::1") == "branch"
    assert filter_.user_of(shown.call_id, "2001:db8::2") is None, "but a call is that of the address"


def test_log_lines_about_made_up_sources_end_somewhere() -> None:
    once = LogRateLimit()
    said = sum(once.due(f"10.0.{n // 250}.{n % 250} 403", n / 1000) is not None for n in range(50000))
    assert said == 1024
    assert once.due("10.0.0.1 403", 120.0) is not None


def test_what_is_remembered_of_calls_does_not_grow_with_their_names() -> None:
    filter_, _ = request_filter(per_s=0.0)
    tracemalloc.start()
    try:
        for number in range(500):
            name = f"{number}-" + "x" * 60000
            assert filter_.check(RequestHead("INVITE", name, f"z9hG4bK{name}", "", FRIEND), 0.0) == PASS
            assert filter_.check(RequestHead("INVITE", name, name, "", STRANGER), 0.0, lambda: ("good", "ann")) == PASS
            assert filter_.user_of(name, STRANGER) == "ann"
        assert tracemalloc.get_traced_memory()[0] < 2_000_000, "60 MB of names"
    finally:
        tracemalloc.stop()


def test_a_bucket_is_filled_with_time_up_to_its_burst() -> None:
    buckets = TokenBuckets(2.0, 3.0)
    assert "a" not in buckets and buckets.level("a", 0.0) == 3.0
    assert [buckets.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert "a" in buckets and buckets.level("a", 0.25) == 0.5 and not buckets.take("a", 0.25)
    assert buckets.take("a", 0.5) and not buckets.take("a", 0.5)
    assert buckets.level("a", 100.0) == 3.0 and buckets.level("b", 0.5) == 3.0


def test_a_full_table_gives_newcomers_nothing_until_a_bucket_is_full_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_filter_module, "_MAX_SOURCES", 3)
    buckets = TokenBuckets(1.0, 2.0)
    for at, source in enumerate("abc"):
        assert buckets.take(source, at / 10)
    assert not buckets.take("d", 0.5) and "d" not in buckets and buckets.level("d", 0.5) == 0.0
    assert buckets.take("a", 0.5), "who is in the table keeps the place"
    assert buckets.level("d", 1.15) == 2.0 and "b" not in buckets, "its bucket is full again"
    assert buckets.take("d", 1.15) and "d" in buckets and "a" in buckets
