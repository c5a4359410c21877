"""SIP headers: who calls, and which headers reach the application."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError
from config.load import parse
from config.settings import Sip
from mediaworker.ingress.sip.headers import (
    MAX_HEADERS,
    MAX_VALUE_CHARS,
    calling_uri,
    custom_headers,
    overriding_headers,
    user_part,
)

NAMED = Sip().headers

TELLING = {
    "P-Asserted-Identity": '"Bea" <sip:+4930123456@carrier.example>, <tel:+4930123456>',
    "Diversion": "<sip:100@pbx.example>;reason=no-answer, <sip:200@pbx.example>;reason=busy",
    "History-Info": "<sip:100@pbx.example>;index=1, <sip:200@pbx.example>;index=1.1",
    "Remote-Party-ID": "<sip:+4930123456@carrier.example>;party=calling;privacy=off",
    "User-to-User": "56a390f3d2b7310023a2;encoding=hex;purpose=isdn-uui",
    "Session-ID": "ab30317f1a784dc48ff824d0d3715d86;remote=47755a9de7794ba387653f2099600ef2",
    "Cisco-GUID": "3242324224-2863311530-1431655765-0305419896",
}


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
