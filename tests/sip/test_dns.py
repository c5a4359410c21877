"""Registrars, proxies and peers whose servers are in the DNS (RFC 3263), and what accounts need beside a password."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab.network.authority import Authority
from lab.network.name_server import NameServer
from lab.sip.endpoint import Recorder, until, worker
from lab.sip.registrar_peer import RegistrarPeer
from lab.sip.scenes import quick
from lab.sip.sip_peer import SipPeer, sdp
from sip.pjsip import server_location
from sip.pjsip.endpoint import SipEndpoint


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """Its targets are `localhost`, for addresses are the system's to find."""
    with NameServer({}) as server:
        monkeypatch.setattr(server_location, "resolver", server.resolver)
        yield server


def account(registrar: str, **more: object) -> dict[str, object]:
    return {"registrar": registrar, "user": "alice", "password": "secret", **more}


async def registered(endpoint: SipEndpoint) -> str:
    await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
    return endpoint.registrations[0].registrar


def srv(*ports: int) -> tuple[str, ...]:
    """The first one has the best priority."""
    return tuple(f"{priority} 0 {port} localhost." for priority, port in enumerate(ports))


# -- registrars --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registrar", "service"),
    [
        ("sip:pbx.example", "_sip._tcp.pbx.example"),
        ("sip:pbx.example;transport=tcp", "_sip._tcp.pbx.example"),
        ("pbx.example", "_sip._tcp.elsewhere.example"),  # where NAPTR leads to
    ],
)
async def test_a_registrar_has_its_port_in_srv_records(names: NameServer, registrar: str, service: str) -> None:
    handler = Recorder()
    async with RegistrarPeer() as pbx:
        names.records[f"{service} SRV"] = srv(pbx.port)
        if "elsewhere" in service:
            names.records["pbx.example NAPTR"] = (f'10 10 "s" "SIP+D2T" "" {service}.',)
        async with worker(handler, left_open=4, accounts=[account(registrar)]) as endpoint:
            assert f"127.0.0.1:{pbx.port};transport=tcp" in await registered(endpoint)
            assert re.match(r"REGISTER sip:pbx\.example(;transport=tcp)? SIP", pbx.requests[0])
            assert "\r\nRoute:" not in pbx.requests[0]
            await pbx.invite()
            assert handler.log[0][0] == "call", "its addresses may call"
            handler.calls[0].hangup()


@pytest.mark.parametrize("answer", ["", "503 Service Unavailable"])
async def test_the_next_server_has_the_account_when_the_first_has_not(names: NameServer, answer: str) -> None:
    async with RegistrarPeer(answer=answer or "200 OK") as first, RegistrarPeer() as second:
        dead = 9
        names.records["_sip._tcp.pbx.example SRV"] = srv(first.port if answer else dead, second.port)
        keys = account("sip:pbx.example;transport=tcp")
        async with worker(Recorder(), left_open=4, accounts=[keys]) as endpoint:
            assert str(second.port) in await registered(endpoint)
            assert len(first.requests) == bool(answer)


async def test_a_certificate_is_held_to_the_name_in_the_uri_and_not_to_the_server_s(
    names: NameServer, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    async with RegistrarPeer(authority.issue("pbx", "DNS:pbx.example")) as pbx:
        names.records["_sips._tcp.pbx.example SRV"] = srv(pbx.port)
        keys = {"accounts": [account("sips:pbx.example")], "tls_ca": str(authority.cert)}
        async with worker(Recorder(), left_open=4, **keys) as endpoint:
            await registered(endpoint)
            assert pbx.names == ["pbx.example"]


@pytest.mark.parametrize("kind", ["silent", "failing"])
async def test_servers_stay_while_the_name_server_has_no_answer(
    names: NameServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(server_location, "ANSWER_S", 0.2)
    async with RegistrarPeer() as pbx:
        names.records["_sip._tcp.pbx.example SRV"] = srv(pbx.port)
        keys = account("sip:pbx.example;transport=tcp")
        async with worker(Recorder(), left_open=4, accounts=[keys]) as endpoint:
            await registered(endpoint)
            (own,) = endpoint._accounts
            before = dict(own._located)
            setattr(names, kind, ("SRV",))
            await own._locate(own.hops[0])
            assert own._located == before, "and not port 5060 of the name itself"
            setattr(names, kind, ())
            names.records["_sip._tcp.pbx.example SRV"] = srv(9)
            await own._locate(own.hops[0])
            assert [server.port for server in own._located[own.hops[0]]] == [9]


# -- proxies, and names for the digest ---------------------------------------------------------------------------------


async def test_a_proxy_has_the_requests_and_may_call(names: NameServer) -> None:
    handler = Recorder()
    async with RegistrarPeer() as proxy:
        keys = account("sip:office.invalid", proxy=proxy.uri)
        async with worker(handler, left_open=4, trusted=(), accounts=[keys]) as endpoint:
            assert await registered(endpoint) == f"sip:office.invalid (by {proxy.uri})"
            (request,) = proxy.requests
            assert request.startswith("REGISTER sip:office.invalid SIP/2.0") and "\r\nRoute:" not in request
            assert re.search(r"(?m)^To: <sip:alice@office\.invalid>", request)
            await proxy.invite()
            assert handler.log[0][0] == "call"
            handler.calls[0].hangup()
        assert "Expires: 0" in proxy.requests[-1]
        assert not names.asked, "the registrar's name is the proxy's to find"


async def test_a_proxy_may_be_found_by_srv_records_and_fail_over(names: NameServer) -> None:
    async with RegistrarPeer(answer="503 Service Unavailable") as first, RegistrarPeer() as second:
        names.records["_sip._tcp.proxy.example SRV"] = srv(first.port, second.port)
        keys = account("sip:office.invalid", proxy="sip:proxy.example;transport=tcp")
        async with worker(Recorder(), left_open=4, accounts=[keys]) as endpoint:
            assert str(second.port) in await registered(endpoint)
            assert len(first.requests) == 1


@pytest.mark.parametrize("auth_user", ["", "Xk7-auth", "alice@office.example"])
async def test_the_digest_has_the_authentication_id_and_the_rest_the_extension(auth_user: str) -> None:
    challenge = '401 Unauthorized\r\nWWW-Authenticate: Digest realm="3CX", nonce="abc", algorithm=MD5'
    async with RegistrarPeer(answer=challenge) as pbx:
        async with worker(Recorder(), left_open=4, accounts=[account(pbx.uri, auth_user=auth_user)]) as endpoint:
            await until(lambda: len(pbx.requests) >= 2, timeout_s=10)
            request = pbx.requests[1]
            assert re.findall(r'username="([^"]*)"', request) == [auth_user or "alice"]
            for header in ("From", "To", "Contact"):
                assert re.search(rf"(?m)^{header}: *<sip:alice@", request)
            await until(lambda: endpoint.registrations[0].state == "failed", timeout_s=10)


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("naptr", [False, True])
async def test_a_contact_without_a_port_is_found_by_srv_records(names: NameServer, naptr: bool) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        with closing(SipPeer(endpoint.port)) as caller:
            caller.contact = "<sip:4711@phones.example>"
            names.records["_sip._udp.phones.example SRV"] = srv(caller.port)
            if naptr:
                names.records["phones.example NAPTR"] = ('10 10 "s" "SIP+D2U" "" _sip._udp.phones.example.',)
            await caller.invite(sdp(40000))
            handler.calls[0].hangup()
            caller.reply(await caller.request("BYE"), "200 OK")
            await until(lambda: endpoint.calls == 0)


async def test_a_call_goes_to_the_next_server_when_the_first_is_not_there(names: NameServer) -> None:
    """As the BYE to a Contact that is reached by TCP."""
    handler = Recorder()
    async with RegistrarPeer() as other, worker(handler, left_open=4) as endpoint:
        with closing(SipPeer(endpoint.port)) as caller:
            caller.contact = "<sip:4711@phones.example;transport=tcp>"
            names.records["_sip._tcp.phones.example SRV"] = srv(9, other.port)
            await caller.invite(sdp(40000))
            handler.calls[0].hangup()
            await until(lambda: any(request.startswith("BYE") for request in other.requests), timeout_s=10)
            await until(lambda: endpoint.calls == 0)


async def test_a_contact_with_a_port_is_not_looked_for_in_srv_records(names: NameServer) -> None:
    handler = Recorder()
    with quick():
        async with worker(handler) as endpoint:
            with closing(SipPeer(endpoint.port)) as caller:
                caller.contact = f"<sip:4711@localhost:{caller.port}>"
                await caller.invite(sdp(40000))
                handler.calls[0].hangup()
                caller.reply(await caller.request("BYE"), "200 OK")
                await until(lambda: endpoint.calls == 0)
                assert not names.asked
