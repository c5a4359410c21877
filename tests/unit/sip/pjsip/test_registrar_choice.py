"""Which registrar is asked when, and what a registrar's name may be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.network.addresses import Family
from sip.pjsip.registrar import Registrar, RegistrarTarget, Rotation, in_order
from sip.pjsip.server_location import Location, SipServer


def targets(*names: str) -> list[RegistrarTarget]:
    return [RegistrarTarget(Registrar.parse(name), at("192.0.2.1")) for name in names]


def at(address: str, port: int = 5060, transport: Any = "udp") -> SipServer:
    return SipServer(transport, address, port)


def longest(low: float, high: float) -> float:
    return high


def test_what_a_registrar_may_be() -> None:
    assert Registrar.parse("sip:pbx") == Registrar("pbx", 0, "") == Registrar.parse(" pbx ")
    assert Registrar.parse("sip:pbx;transport=udp") == Registrar("pbx", 0, "udp")
    assert Registrar.parse("SIPS:a@pbx:5071") == Registrar("pbx", 5071, "tls")
    assert str(Registrar.parse("sips:pbx")) == "sip:pbx;transport=tls"
    named = Registrar.parse("sip:pbx;transport=TCP")
    assert named.route(at("192.0.2.1", 5060, "tcp")) == "<sip:192.0.2.1;lr;hide;transport=tcp>"
    assert named.route(at("192.0.2.1", 5080, "tcp")) == "<sip:192.0.2.1:5080;lr;hide;transport=tcp>"
    for wrong in (
        "",
        "sip:pbx:65536",
        "sip:",
        "sips:pbx;transport=udp",
        "sip:pbx;transport=ws",
        "sip:a b",
        "tel:a",
        "sip:a@b@c",
    ):
        with pytest.raises(ValueError, match=r"expected sip:HOST"):
            Registrar.parse(wrong)


def test_a_target_says_where_it_is() -> None:
    pbx, proxy = Registrar.parse("sip:pbx"), Registrar.parse("sip:proxy:5080;transport=tcp")
    assert str(RegistrarTarget(pbx, at("192.0.2.1"))) == "sip:pbx (192.0.2.1)"
    assert str(RegistrarTarget(pbx, at("192.0.2.1", 5070))) == "sip:pbx (192.0.2.1:5070;transport=udp)"
    assert str(RegistrarTarget(pbx, at("192.0.2.1", 5060, "tcp"))) == "sip:pbx (192.0.2.1:5060;transport=tcp)"
    assert str(RegistrarTarget(Registrar.parse("192.0.2.1"), at("192.0.2.1"))) == "sip:192.0.2.1"
    behind = RegistrarTarget(pbx, at("192.0.2.9", 5080, "tcp"), proxy)
    assert str(behind) == "sip:pbx (by sip:proxy:5080;transport=tcp, 192.0.2.9)"
    assert behind.route == "<sip:192.0.2.9:5080;lr;hide;transport=tcp>", "the registrar is in the request alone"
    secure = RegistrarTarget(pbx, at("192.0.2.9", 5061, "tls"), Registrar.parse("sips:proxy"))
    assert secure.route == "<sip:proxy;lr;hide;maddr=192.0.2.9;transport=tls>", "the certificate names the proxy"


def test_a_registrar_may_be_an_ipv6_address() -> None:
    registrar = Registrar.parse("sip:alice@[2001:DB8:0::1]:5070;transport=tcp")
    assert registrar == Registrar("2001:db8::1", 5070, "tcp")
    assert str(registrar) == "sip:[2001:db8::1]:5070;transport=tcp"
    server = at("2001:db8::1", 5070, "tcp")
    assert registrar.route(server) == "<sip:[2001:db8::1]:5070;lr;hide;transport=tcp>"
    assert str(RegistrarTarget(registrar, server)) == str(registrar)
    named, server = Registrar.parse("sips:pbx"), at("2001:db8::1", 5061, "tls")
    assert named.route(server) == "<sip:pbx;lr;hide;maddr=2001:db8::1;transport=tls>"
    assert str(RegistrarTarget(named, server)) == "sip:pbx;transport=tls (2001:db8::1)"
    for wrong in ("sip:2001:db8::1", "sip:[2001:db8::g]", "sip:[]", "sip:[::1", "sip:[192.0.2.1]", "sip:[::1]x"):
        with pytest.raises(ValueError, match=r"expected sip:HOST|not an IP address"):
            Registrar.parse(wrong)


def test_the_addresses_of_a_name_are_those_of_our_families_and_ipv4_comes_first() -> None:
    found = ["2001:db8::2", "192.0.2.9", "fe80::1%eth0", "2001:db8::1", "192.0.2.1", "192.0.2.9"]
    four, six = ["192.0.2.1", "192.0.2.9"], ["2001:db8::1", "2001:db8::2"]
    assert in_order(found, ("IP4", "IP6")) == four + six
    assert in_order(found, ("IP4",)) == four and in_order(found, ("IP6",)) == six


async def test_addresses_are_their_own_and_names_are_asked_for() -> None:
    both: tuple[Family, ...] = ("IP4", "IP6")
    assert await Registrar.parse("sip:[2001:DB8::1]").locate(both) == Location((at("2001:db8::1"),))
    assert await Registrar.parse("sips:192.0.2.1").locate(both) == Location((at("192.0.2.1", 5061, "tls"),))
    assert await Registrar.parse("sip:192.0.2.1:9;transport=tcp").locate(both) == Location((at("192.0.2.1", 9, "tcp"),))
    assert await Registrar.parse("sip:192.0.2.1").locate(("IP6",)) == Location()
    assert at("127.0.0.1") in (await Registrar.parse("sip:localhost").locate(both)).servers
    assert at("127.0.0.1") not in (await Registrar.parse("sip:localhost").locate(("IP6",))).servers


def test_the_next_one_has_its_turn_at_once_and_a_round_of_failures_is_waited_for() -> None:
    rotation = Rotation(longest)
    first, second = targets("sip:a", "sip:b")
    assert rotation.found([first, second]) and rotation.current == first
    assert not rotation.found([first, second]), "the one in use is kept"
    assert rotation.failed(503) < 1 and rotation.current == second
    assert rotation.failed(408) == 4 and rotation.current == first
    assert rotation.failed(0) < 1 and rotation.current == second
    assert rotation.failed(0) == 8
    rotation.registered()
    assert rotation.failed(500) < 1 and rotation.current == second
    assert rotation.failed(403) == 30, "a refusal is not repeated quickly"
    rotation.registered()
    assert rotation.found([second]) and rotation.current == second, "an address that is gone is not asked again"
    assert not rotation.found([]) and rotation.current == second, "nobody to ask for addresses"


def test_a_registrar_says_when_to_come_back() -> None:
    rotation = Rotation(longest)
    rotation.found(targets("sip:a"))
    assert rotation.failed(503, 90) == 90
    assert rotation.failed(503, 10**9) == 3600


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 699), st.integers(0, 10**6)), max_size=60))
def test_every_registrar_is_tried_and_no_wait_is_without_end(count: int, failures: list[tuple[int, int]]) -> None:
    rotation = Rotation()
    listed = targets(*(f"sip:r{index}" for index in range(count)))
    rotation.found(listed)
    tried = []
    for code, retry_after_s in failures:
        tried.append(rotation.current)
        assert 0 < rotation.failed(code, retry_after_s) <= 3600
    assert tried == [listed[index % count] for index in range(len(failures))]
