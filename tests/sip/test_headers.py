"""What a SIP caller's headers come to: who calls, `custom`, and routes; by the rules, and in a running worker."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

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
from tests.support.peers import worker
from tests.support.sip_peer import SipPeer, sdp

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
ROUTES = """[{headers = {Diversion = "*sip:200@*", "P-Charging-Vector" = "icid-value=7*"}, names = {main = "Diverted"}},
{calling = "+4930*", names = {main = "Berlin"}}]""".replace("\n", " ")


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


async def call(port: int, who: str, *headers: str) -> None:
    with closing(SipPeer(port)) as caller:
        cseq = caller.send("INVITE", sdp(40000), f"From: <{who}>;tag={caller.tag}", *headers)
        await caller.answer(cseq, status=200)
        caller.send("ACK", cseq=cseq)
        await caller.bye()


async def test_a_call_from_a_carrier(tmp_path: Path) -> None:
    told: dict[str, Any] = {}
    with worker(tmp_path, ROUTES=ROUTES, SIP__HEADERS=str([*NAMED, "P-Charging-Vector"])) as running:
        lines = [f"{name}: {value}" for name, value in TELLING.items()]
        for number, more in enumerate(("P-Charging-Vector: icid-value=7", "X-Ticket: 42"), 1):
            await call(running.sip_port, "sip:anonymous@anonymous.invalid", *lines, more)
            ended = await asyncio.to_thread(running.wait_ended, number, 30)
            told[more.split(":")[0]] = running.events(ended[-1]["call_id"])[0]
    diverted, plain = told["P-Charging-Vector"], told["X-Ticket"]
    assert {name: diverted["custom"][name.lower()] for name in TELLING} == TELLING
    assert diverted["custom"]["p-charging-vector"] == "icid-value=7" and plain["custom"]["x-ticket"] == "42"
    assert [each["from"] for each in (diverted, plain)] == ["+4930123456"] * 2
    assert [each["legs"][0]["name"] for each in (diverted, plain)] == ["Diverted", "Berlin"]
