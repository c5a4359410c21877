"""Which addresses an access list names, and how often a notice is logged."""

from __future__ import annotations

import pytest

from config import ConfigError
from config.load import parse
from config.log.rate_limit import LogRateLimit
from config.network.access_list import AccessList
from config.network.addresses import split_address


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("203.0.113.1", True),
        ("203.0.113.2", False),
        ("nonsense", False),
        ("", False),
    ],
)
def test_access(address: str, allowed: bool) -> None:
    access = AccessList(("10.0.0.0/8", "192.0.2.7"))
    access.set_registrar("trunk", ["203.0.113.2"])
    access.set_registrar("trunk", ["203.0.113.1"])
    assert access.allows(address) is allowed
    assert access.accounts_at("203.0.113.1") == {"trunk"}
    access.set_registrar("other", ["203.0.113.1"])
    assert access.accounts_at("203.0.113.1") == {"trunk", "other"} and not access.accounts_at("203.0.113.2")


def test_access_names_the_bad_entry() -> None:
    with pytest.raises(ConfigError, match=r"sip\.allow\[0\] = '10\.0\.0\.0/99'"):
        parse({"sip": {"allow": ["10.0.0.0/99"]}})


def test_once_per_minute() -> None:
    once = LogRateLimit(60.0)
    assert once.due("a", 0.0) == 0
    assert [once.due("a", float(now)) for now in range(1, 4)] == [None] * 3
    assert once.due("b", 4.0) == 0
    assert once.due("a", 60.0) == 3


def test_addresses_are_split() -> None:
    assert split_address("192.0.2.1:5060") == ("192.0.2.1", 5060)
    assert split_address("[2001:db8::1]:5061") == ("2001:db8::1", 5061)
