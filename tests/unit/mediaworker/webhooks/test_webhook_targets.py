"""Which addresses a webhook may have."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError
from config.load import parse
from mediaworker.jobs import notifier
from mediaworker.webhooks.targets import Targets, is_public

PUBLIC = ["192.0.9.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]

HIDDEN = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.255", "169.254.169.254", "172.16.0.1",
    "192.0.0.192", "192.88.99.1", "168.63.129.16", "::ffff:168.63.129.16",
    "192.0.2.1", "192.168.1.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "::7f00:1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8", "100::1", "2001::1",
    "2001:db8::1", "2002:7f00:1::", "2002:808:808::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1",
    "fec0::1", "ff02::1",
]  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", HIDDEN)
def test_not_public_unless_allowed(text: str) -> None:
    address = ipaddress.ip_address(text)
    for allow, may in (((), False), ((text,), True), (("203.0.113.0/24",), False)):
        targets = Targets(allow)
        assert targets.may(address) == may
        targets.close()


@given(st.ip_addresses(v=4))
def test_each_spelling_of_an_address_is_judged_as_the_address(address: ipaddress.IPv4Address) -> None:
    for prefix in ("::ffff:", "64:ff9b::"):
        assert is_public(ipaddress.ip_address(f"{prefix}{address}")) == is_public(address)
    assert not is_public(ipaddress.ip_address(f"::{address}"))
    assert not is_public(ipaddress.ip_address((0x2002 << 112) | int(address) << 80))


def test_what_is_no_network_is_an_error_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"jobs\.webhook_allow\[1\].*'intranet'"):
        notifier.check(parse({"jobs": {"webhook_allow": ["10.0.0.0/8", "intranet"]}}))
