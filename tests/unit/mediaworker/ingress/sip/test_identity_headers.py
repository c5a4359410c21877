"""SIP headers: who calls, and which headers reach the application."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError
from config.load import parse
from lab.sip.headers import NAMED, TELLING
from mediaworker.ingress.sip.headers import (
    MAX_HEADERS,
    MAX_VALUE_CHARS,
    calling_uri,
    custom_headers,
    overriding_headers,
    user_part,
)


def test_who_calls() -> None:
    asserted = {name.lower(): value for name, value in TELLING.items()}
    hidden = ["sip:anonymous@anonymous.invalid", "sip:Anonymous@10.0.0.1", "sip:x@anonymous.invalid", "sip:10.0.0.1"]
    for uri in hidden:
        assert calling_uri(uri, asserted) == "sip:+4930123456@carrier.example"
        assert calling_uri(uri, {}) == uri
    assert calling_uri("sip:4711@pbx.example", asserted) == "sip:4711@pbx.example"
    assert calling_uri(hidden[0], {"p-asserted-identity": "tel:+49301, sip:x@y"}) == "tel:+49301"
    assert calling_uri(hidden[0], {"p-asserted-identity": "<sip:anonymous@x>, <tel:+49301>"}) == "tel:+49301"
    assert calling_uri(hidden[0], {"p-asserted-identity": "<sip:pbx.example>"}) == hidden[0]
    assert calling_uri(hidden[0], {"remote-party-id": '"B" <sip:7@x>;party=calling'}) == "sip:7@x"


@pytest.mark.parametrize(
    ("uri", "asserted", "number"),
    [
        ("sip:+33123;npdi;rn=+33999@h", "<sip:+33555@h>", "+33123"),
        ("sip:anonymous@anonymous.invalid", "<sip:+33123;npdi;rn=+33999@h;user=phone>", "+33123"),
        ("sip:anonymous@anonymous.invalid", "sip:+33123;npdi;rn=+33999@h;user=phone, tel:+33555", "+33123"),
        ("sip:anonymous;npdi@h", "<tel:+33123;npdi;rn=+33999>", "+33123"),
        ("sip:Restricted:x@h", '"A" <sip:33123:secret@h>', "33123"),
        ("tel:+33123;cpc=operator", "<sip:+33555@h>", "+33123"),
        ("sip:%2B33123@h", "", "+33123"),
        ("sip:x;npdi@anonymous.invalid;p=1", "<sip:+33123@h>", "+33123"),
        ("tel:", "<sip:+33123@h>", "+33123"),
    ],
)
def test_a_number_is_one_without_the_parameters_of_its_user(uri: str, asserted: str, number: str) -> None:
    """RFC 4694, as the carriers of a ported number set them."""
    assert user_part(calling_uri(uri, {"p-asserted-identity": asserted})) == number


def test_what_reaches_custom_is_bounded() -> None:
    flood = {f"x-{number}": "y" * 5000 for number in range(500)}
    headers = {**flood, "diversion": "z" * 60_000, "x-" + "n" * 500: "long", "x-mediaworker-language": "de", "via": "1"}
    custom = custom_headers(headers, NAMED)
    assert len(custom) == MAX_HEADERS and max(map(len, custom.values())) == MAX_VALUE_CHARS
    assert "diversion" in custom and max(map(len, custom)) < 100 and "x-mediaworker-language" not in custom
    assert custom_headers(headers, ("VIA",))["via"] == "1"
    flood = {f"x-mediaworker-name-{number}": "y" * 5000 for number in range(500)}
    assert len(overriding_headers(flood)) == MAX_HEADERS


@given(st.text(max_size=200), st.dictionaries(st.sampled_from(["p-asserted-identity", "remote-party-id"]), st.text()))
def test_any_identity_is_somebody_or_nobody(uri: str, headers: dict[str, str]) -> None:
    assert isinstance(user_part(calling_uri(uri, headers)), str)


def test_a_header_has_a_name() -> None:
    for wrong in ("", "Two words", "Colon:"):
        with pytest.raises(ConfigError):
            parse({"sip": {"headers": [wrong]}})
