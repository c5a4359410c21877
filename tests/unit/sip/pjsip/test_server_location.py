"""Where the servers of a SIP URI are (RFC 3263): what is asked for, in what order, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sip.pjsip import server_location
from sip.pjsip.server_location import Location, SipServer, locate

ADDRESSES = {"pbx.example": ["192.0.2.1"], "a.example": ["192.0.2.10", "2001:db8::a"], "b.example": ["192.0.2.11"]}
DNS = Mapping[str, tuple[str, ...] | None]
"""`NAME KIND` → records; None: a name server that says nothing."""


class Records:
    """Stands for the name servers, without a network: what is asked is in `asked`."""

    def __init__(self, records: DNS) -> None:
        self.records, self.asked = records, []

    def query(self, name: str, kind: str) -> Any:
        import dns.rrset

        self.asked.append(f"{name} {kind}")
        found = self.records.get(f"{name} {kind}", ())
        if found is None:
            return None
        rdatas = dns.rrset.from_text(f"{name}.", 60, "IN", kind, *found).processing_order() if found else ()
        return tuple(rdatas)


async def located(
    monkeypatch: pytest.MonkeyPatch,
    records: DNS,
    host: str = "pbx.example",
    port: int = 0,
    transport: Any = "",
    transports: tuple[str, ...] = ("udp", "tcp"),
) -> tuple[Location, list[str]]:
    made = Records(records)
    monkeypatch.setattr(server_location, "query", made.query)

    async def look_up(name: str) -> list[str]:
        return ADDRESSES.get(name, [])

    found = await locate(host, port, transport, transports=transports, look_up=look_up)
    return found, made.asked


def servers(*texts: str) -> tuple[SipServer, ...]:
    """`udp 192.0.2.1 5060`."""
    return tuple(SipServer(kind, address, int(port)) for kind, address, port in map(str.split, texts))  # type: ignore[arg-type]


async def test_a_port_leaves_nothing_but_the_address_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    srv = {"_sip._udp.pbx.example SRV": ("0 0 5070 a.example.",)}
    assert await located(monkeypatch, srv, port=5080) == (Location(servers("udp 192.0.2.1 5080")), [])
    assert await located(monkeypatch, srv, port=5080, transport="tcp") == (Location(servers("tcp 192.0.2.1 5080")), [])


async def test_without_records_the_name_is_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = await located(monkeypatch, {})
    assert found == Location(servers("udp 192.0.2.1 5060"))
    assert asked == ["pbx.example NAPTR", "_sip._udp.pbx.example SRV", "_sip._tcp.pbx.example SRV"]
    assert (await located(monkeypatch, {}, transports=("tcp",)))[0] == Location(servers("tcp 192.0.2.1 5060"))
    found, asked = await located(monkeypatch, {}, transport="tls", transports=("udp", "tls"))
    assert found == Location(servers("tls 192.0.2.1 5061")) and asked == ["_sips._tcp.pbx.example SRV"]
    assert (await located(monkeypatch, {}, host="nobody.example"))[0] == Location(())


async def test_srv_records_have_port_and_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    records = {
        "_sip._udp.pbx.example SRV": ("20 0 5070 b.example.", "10 0 5090 a.example."),
        "_sip._tcp.pbx.example SRV": ("10 0 5071 b.example.",),
    }
    udp = ["udp 192.0.2.10 5090", "udp 2001:db8::a 5090", "udp 192.0.2.11 5070"]
    assert (await located(monkeypatch, records))[0] == Location(servers(*udp, "tcp 192.0.2.11 5071"))
    assert (await located(monkeypatch, records, transport="tcp"))[0] == Location(servers("tcp 192.0.2.11 5071"))
    assert (await located(monkeypatch, records, transports=("tcp",)))[0] == Location(servers("tcp 192.0.2.11 5071"))


async def test_a_target_that_is_the_root_says_that_there_is_no_such_service(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = await located(monkeypatch, {"_sip._udp.pbx.example SRV": ("0 0 0 .",)})
    assert found == Location(())


async def test_naptr_records_choose_the_transport_and_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    records = {
        "pbx.example NAPTR": (
            '10 10 "s" "SIPS+D2T" "" _sips._tcp.secure.example.',
            '20 10 "S" "sip+d2t" "" _sip._tcp.other.example.',
            '30 10 "u" "E2U+sip" "!^.*$!sip:x@y!" .',
            '5 10 "s" "SIP+D2S" "" _sip._sctp.pbx.example.',
        ),
        "_sips._tcp.secure.example SRV": ("0 0 5081 a.example.",),
        "_sip._tcp.other.example SRV": ("0 0 5082 b.example.",),
        "_sip._udp.pbx.example SRV": ("0 0 5083 b.example.",),
    }
    found, asked = await located(monkeypatch, records)
    assert found == Location(servers("tcp 192.0.2.11 5082")), "no TLS where there is none"
    assert asked == ["pbx.example NAPTR", "_sip._tcp.other.example SRV"]
    found, _ = await located(monkeypatch, records, transports=("udp", "tcp", "tls"))
    tls = ["tls 192.0.2.10 5081", "tls 2001:db8::a 5081"]
    assert found == Location(servers(*tls, "tcp 192.0.2.11 5082"))
    assert (await located(monkeypatch, records, transports=("udp",)))[0] == Location(servers("udp 192.0.2.11 5083"))


async def test_what_a_silent_name_server_leaves_open_is_not_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    silent: DNS = {"pbx.example NAPTR": None, "_sip._udp.pbx.example SRV": None}
    assert (await located(monkeypatch, silent))[0] == Location(servers("udp 192.0.2.1 5060"), certain=False)
    half = silent | {"_sip._tcp.pbx.example SRV": ("0 0 5071 b.example.",)}
    assert (await located(monkeypatch, half))[0] == Location(servers("tcp 192.0.2.11 5071"), certain=False)


async def test_a_single_word_is_in_no_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("localhost", "pbx", "pbx."):
        assert (await located(monkeypatch, {}, host=name))[1] == []


@given(
    st.dictionaries(
        st.sampled_from(["pbx.example NAPTR", "_sip._udp.pbx.example SRV", "_sip._tcp.pbx.example SRV"]), st.none()
    ),
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 65535), st.sampled_from(sorted(ADDRESSES)))
    ),
    st.sampled_from(["", "udp", "tcp", "tls"]),
)
async def test_servers_are_few_each_once_and_in_the_order_of_their_priorities(
    silent: DNS, entries: list[tuple[int, int, int, str]], transport: str
) -> None:
    texts = tuple(f"{priority} {weight} {port} {target}." for priority, weight, port, target in entries)
    records = {f"_{scheme}.pbx.example SRV": texts for scheme in ("sip._udp", "sip._tcp", "sips._tcp") if texts}
    with pytest.MonkeyPatch.context() as patch:
        found, _ = await located(patch, records | silent, transport=transport)
    assert len(found.servers) <= server_location.MAX_RECORDS
    assert len(set(found.servers)) == len(found.servers)
    if transport and transport != "tls":
        assert {server.transport for server in found.servers} == {transport}
    best = min((priority for priority, *_ in entries), default=None)
    if best is not None and found.certain:
        ports = {port for priority, _, port, _ in entries if priority == best}
        assert found.servers[0].port in ports
