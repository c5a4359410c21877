"""Who is let in to the SIP port, decided without a socket."""

from __future__ import annotations

import tracemalloc
from itertools import count

from sip.access import OncePer
from sip.request_filter import (
    DROP,
    FIRST_MESSAGE_S,
    PASS,
    RETRY_S,
    STRANGER_BURST,
    STRANGER_TCP_S,
    ConnectionTable,
    RequestFilter,
    RequestHead,
)

FRIEND, STRANGER = "192.0.2.10", "203.0.113.5"
_numbers = count()


def request(method: str = "INVITE", source: str = FRIEND, *, tag: str = "", branch: str = "") -> RequestHead:
    number = next(_numbers)
    return RequestHead(method, f"call-{branch or number}", branch or f"z9hG4bK{number}", tag, source)


def gate(refusal: int = 0, per_s: float = 5.0) -> tuple[RequestFilter, list[int]]:
    status = [refusal]
    return RequestFilter(lambda source: source == FRIEND, lambda: status[0], invites_per_s=per_s), status


def test_a_stranger_is_told_a_few_times_and_then_not_answered() -> None:
    door, _ = gate()
    verdicts = [door.judge(request(method, STRANGER), 0.0) for method in ("INVITE", "OPTIONS", "REGISTER") * 1000]
    assert verdicts == [403] * STRANGER_BURST + [DROP] * (3000 - STRANGER_BURST)
    assert door.judge(request(source=STRANGER), 5.1) == 403
    assert door.judge(request(source="203.0.113.6"), 0.0) == 403
    assert door.judge(request("ACK", "203.0.113.7"), 0.0) == DROP


def test_within_a_dialog_others_may_speak_but_not_flood() -> None:
    door, _ = gate()
    verdicts = [door.judge(request("BYE", STRANGER, tag="x"), 0.0) for _ in range(1000)]
    assert verdicts.count(PASS) == 50
    assert door.judge(request("BYE", STRANGER, tag="x"), 1.0) == PASS


def test_calls_from_one_address_have_a_rate() -> None:
    door, _ = gate(per_s=5.0)
    assert [door.judge(request(), 0.0) for _ in range(12)] == [PASS] * 10 + [503] * 2
    assert door.judge(request(), 0.21) == PASS
    unlimited, _ = gate(per_s=0.0)
    assert all(unlimited.judge(request(), 0.0) == PASS for _ in range(1000))


def test_a_repetition_of_what_was_let_in_is_let_in_though_the_worker_is_full() -> None:
    door, refusal = gate(per_s=1.0)
    assert door.judge(request(branch="a"), 0.0) == PASS
    refusal[0] = 486
    assert door.judge(request(branch="b"), 0.0) == 486
    assert door.judge(request(branch="a"), 30.0) == PASS
    assert door.judge(request(branch="a"), RETRY_S) == 486
    assert door.judge(request(tag="in-dialog"), 30.0) == PASS
    assert door.judge(request("OPTIONS"), 30.0) == PASS


def test_connections_are_counted_and_those_that_say_nothing_go() -> None:
    guests = ConnectionTable(lambda peer: peer == FRIEND, 100)
    handles = count(1)
    assert all(guests.arrived(next(handles), STRANGER, 0.0) for _ in range(16))
    refused = next(handles)
    assert not guests.arrived(refused, STRANGER, 0.0)
    guests.left(refused)
    assert sum(guests.arrived(next(handles), f"203.0.113.{n}", 0.0) for n in range(50, 90)) == 25 - 16
    friends = [next(handles) for _ in range(100 - len(guests))]
    assert all(guests.arrived(handle, FRIEND, 0.0) for handle in friends)
    assert not guests.arrived(next(handles), FRIEND, 0.0)
    guests.spoke(1)
    guests.spoke(friends[0])
    assert guests.overdue(FIRST_MESSAGE_S) == []
    late = guests.overdue(FIRST_MESSAGE_S + 0.1)
    assert 1 not in late and friends[0] not in late and len(late) == len(guests) - 2
    assert 1 in guests.overdue(STRANGER_TCP_S + 0.1) and friends[0] not in guests.overdue(STRANGER_TCP_S + 0.1)


def test_a_stranger_has_a_whole_network_of_ipv6() -> None:
    door, _ = gate()
    sources = (f"2001:db8::{n:x}:{n:x}" for n in range(1, 1001))
    verdicts = [door.judge(request(source=source), 0.0) for source in sources]
    assert verdicts == [403] * STRANGER_BURST + [DROP] * (1000 - STRANGER_BURST)
    within = [door.judge(request("BYE", f"2001:db8::{n:x}", tag="x"), 0.0) for n in range(1, 101)]
    assert within.count(PASS) == 50
    assert door.judge(request(source="2001:db8:0:1::1"), 0.0) == 403, "the neighbours' network"
    guests = ConnectionTable(lambda peer: peer == FRIEND, 1000)
    assert [guests.arrived(n, f"2001:db8::{n:x}", 0.0) for n in range(1, 18)] == [True] * 16 + [False]
    assert guests.arrived(18, "2001:db8:0:1::1", 0.0)


def test_who_is_on_the_list_is_one_address_of_its_network() -> None:
    friends = {"2001:db8::1", "2001:db8::2"}
    door = RequestFilter(lambda source: source in friends, lambda: 0, invites_per_s=1.0)
    verdicts = [door.judge(request(source=friend), 0.0) for friend in sorted(friends) for _ in range(3)]
    assert verdicts == [PASS, PASS, 503] * 2
    guests = ConnectionTable(lambda peer: peer in friends, 100)
    assert all(guests.arrived(n, "2001:db8::1", 0.0) for n in range(50))


def test_who_has_shown_credentials_may_come_back_from_another_address_of_its_network() -> None:
    door = RequestFilter(lambda source: False, lambda: 0, invites_per_s=5.0)
    shown = request(source="2001:db8::1")
    assert door.judge(shown, 0.0, lambda: ("good", "branch")) == PASS
    asked = [door.judge(request(source="2001:db8::2"), 100.0, lambda: ("none", "")) for _ in range(STRANGER_BURST)]
    assert asked == [401] * 10 and door.judge(request(source="2001:db8::3"), 101.0, lambda: ("none", "")) == 401
    assert door.admitted(shown.call_id, "2001:db8::1") == "branch"
    assert door.admitted(shown.call_id, "2001:db8::2") is None, "but a call is that of the address"


def test_log_lines_about_made_up_sources_end_somewhere() -> None:
    once = OncePer()
    said = sum(once.due(f"10.0.{n // 250}.{n % 250} 403", n / 1000) is not None for n in range(50000))
    assert said == 1024
    assert once.due("10.0.0.1 403", 120.0) is not None


def test_what_is_remembered_of_calls_does_not_grow_with_their_names() -> None:
    door, _ = gate(per_s=0.0)
    tracemalloc.start()
    try:
        for number in range(500):
            name = f"{number}-" + "x" * 60000
            assert door.judge(RequestHead("INVITE", name, f"z9hG4bK{name}", "", FRIEND), 0.0) == PASS
            assert door.judge(RequestHead("INVITE", name, name, "", STRANGER), 0.0, lambda: ("good", "ann")) == PASS
            assert door.admitted(name, STRANGER) == "ann"
        assert tracemalloc.get_traced_memory()[0] < 2_000_000, "60 MB of names"
    finally:
        tracemalloc.stop()
