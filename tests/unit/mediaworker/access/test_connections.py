"""How many connections a port holds, without one."""

from __future__ import annotations

import resource

import pytest

from config.network.addresses import peer_key
from mediaworker.access.connections import ConnectionLimit, affordable, raise_open_files


def test_places_are_counted_in_total_and_by_peer() -> None:
    limit = ConnectionLimit(5, 3)
    assert [limit.enter("192.0.2.1") for _ in range(4)] == ["", "", "", "peer"]
    assert [limit.enter("192.0.2.2") for _ in range(3)] == ["", "", "total"]
    limit.leave("192.0.2.1")
    assert limit.enter("192.0.2.3") == "" and limit.enter("192.0.2.1") == "total"
    assert limit.refused == {"total": 2, "peer": 1} and limit.open == 5
    for peer in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.3"):
        limit.leave(peer)
    assert limit.open == 0 and not limit._by_peer


def test_one_network_of_ipv6_is_one_peer() -> None:
    assert peer_key("2001:db8:1:2::1") == peer_key("2001:db8:1:2:ffff::9") != peer_key("2001:db8:1:3::1")
    assert peer_key("::ffff:192.0.2.1") == peer_key("192.0.2.1") == "192.0.2.1"
    assert peer_key("fe80::1%eth0") and peer_key("") == "" and peer_key("a:b") == "a:b"


def test_calls_come_first_when_files_are_few() -> None:
    assert affordable(1000, files=1_000_000) == 332_914
    assert (affordable(201, files=1024), affordable(202, files=1024)) == (189, 188)
    assert affordable(1000, files=1024) == 16
    limit = ConnectionLimit(4096, 2048)
    limit.lower(100)
    assert [limit.enter("192.0.2.1") for _ in range(51)][-2:] == ["", "peer"]
    limit.lower(5000)
    assert sum(not limit.enter(f"192.0.2.{n}") for n in range(2, 200)) == 50


def test_a_connection_may_use_all_descriptors_that_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1024, 4096]

    def setrlimit(which: int, limits: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE and now == [1024, 4096], "a limit that is at its height is left alone"
        now[:] = limits

    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert affordable(100) == affordable(100, files=1024)
    raise_open_files()
    assert now == [4096, 4096] and affordable(100) == affordable(100, files=4096)
    raise_open_files()
