"""Which registrar is next and when, and accounts that find another one."""

from __future__ import annotations

import asyncio
import re

import pytest

from lab.network.ports import free_port
from lab.patience import timeout
from lab.sip.endpoint import Recorder, until, worker
from lab.sip.registrar_peer import RegistrarPeer


def account(*ports: int) -> dict[str, object]:
    first, *others = (f"sip:127.0.0.1:{port};transport=tcp" for port in ports)
    return {"registrar": first, "backups": others, "user": "alice", "password": "secret", "name": "trunk"}


@pytest.mark.parametrize("answer", ["", "503 Service Unavailable\r\nRetry-After: 300", "403 Forbidden"])
async def test_another_registrar_has_the_account_when_the_first_one_has_not(answer: str) -> None:
    """Nobody there at all, one that is in trouble, one that refuses."""
    async with RegistrarPeer(answer=answer or "200 OK") as first, RegistrarPeer() as second:
        dead = free_port()
        ports = (first.port if answer else dead, second.port)
        async with worker(Recorder(), left_open=4, accounts=[account(*ports)]) as endpoint:
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            assert endpoint.registrations[0].registrar == f"sip:127.0.0.1:{second.port};transport=tcp"
            assert endpoint.counters.registrations_failed == 1
            assert len(first.requests) == bool(answer) and second.requests[0].startswith("REGISTER sip:127.0.0.1")
        assert "Expires: 0" in second.requests[-1], "it takes leave of the one that it was registered at"
        assert len(first.requests) == bool(answer), "and of no other"


async def test_a_registrar_that_dies_is_left_for_the_other_and_a_call_comes_from_there() -> None:
    handler = Recorder()
    async with RegistrarPeer() as second:
        async with RegistrarPeer(answer="200 OK\r\nExpires: 6") as first:
            keys = {"accounts": [account(first.port, second.port)]}
            endpoint_of = worker(handler, left_open=4, **keys)
            endpoint = await endpoint_of.__aenter__()
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
        await until(
            lambda: (r := endpoint.registrations[0]).state == "registered" and str(second.port) in r.registrar,
            timeout_s=20,
        )
        await second.invite()
        assert handler.log[0][0] == "call"
        handler.calls[0].hangup()
        await endpoint_of.__aexit__(None, None, None)


async def test_it_comes_back_by_itself() -> None:
    port = free_port()
    async with worker(Recorder(), left_open=4, accounts=[account(port)]) as endpoint:
        await until(lambda: endpoint.registrations[0].state == "failed", timeout_s=10)
        async with RegistrarPeer(port=port):
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=20)


async def test_a_lost_connection_is_made_again_at_once_and_calls_come_by_it() -> None:
    """An hour before the registration would be refreshed: a PBX that has been started again knows nobody."""
    handler = Recorder()
    async with RegistrarPeer(answer="200 OK\r\nExpires: 3600") as registrar:
        async with worker(handler, left_open=4, accounts=[account(registrar.port)]) as endpoint:
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            registrar.hang_up()
            await until(lambda: endpoint.registrations[0].state == "failed")
            assert endpoint.registrations[0].reason == "the connection was lost"
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            first, second = (re.search(r"Contact: *<sip:alice@[^:]+:(\d+)", each) for each in registrar.requests[:2])
            assert first and second and first[1] != second[1], "where the new connection comes from"
            await registrar.invite()
            assert handler.log[0][0] == "call"
            handler.calls[0].hangup()


# -- when it registers again -----------------------------------------------------------------------------------------

FIRST, SECOND = "<sip:alice@192.0.2.1:5060>;expires=35", "<sip:alice@192.0.2.2:5060>;expires=35"
AS_OTHER = '<sip:alice@192.0.2.9:1024>;expires=40;reg-id=1;+sip.instance="{instance}"'


@pytest.mark.parametrize(
    ("answer", "bindings", "granted_s"),
    [
        ("200 OK", (FIRST, SECOND), 35),  # an SBC has changed ours, and it is one of these
        ("200 OK\r\nExpires: 300", (FIRST, SECOND), 35),
        ("200 OK\r\nExpires: 50", ("<sip:a@192.0.2.1>", "<sip:b@192.0.2.2>;expires=3600"), 50),
        ("200 OK", (FIRST, "{own};expires=120"), 120),  # ours is among them
        ("200 OK", (f"{FIRST}, {SECOND}", "{own};expires=120"), 120),
        ("200 OK\r\nExpires: 60", ("{own}", FIRST), 60),
        ("200 OK", (*(FIRST for _ in range(12)), "{own};expires=120"), 120),  # behind a dozen of others
        ("200 OK", (FIRST, AS_OTHER), 40),  # ours by its instance (RFC 5626)
        ("200 OK", ("<sip:alice@192.0.2.9>;expires=70",), 70),  # the only one there is
        ("200 OK", ("<sip:a@192.0.2.1>;expires=1", "<sip:b@192.0.2.2>;expires=300"), 10),  # not twice a second
        ("200 OK", (FIRST, "*"), 35),
        ("200 OK", (), 300),
    ],
)
async def test_a_registration_is_refreshed_before_its_own_binding_ends(
    answer: str, bindings: tuple[str, ...], granted_s: int
) -> None:
    """Five seconds before, which PJSIP says of its timer."""
    async with RegistrarPeer(answer=answer, bindings=bindings) as registrar:
        async with worker(Recorder(), left_open=4, accounts=[account(registrar.port)]) as endpoint:
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            left_s = endpoint._accounts[0].getInfo().regExpiresSec
            assert granted_s - 5 - 3 <= left_s <= granted_s - 5


# -- an account that one worker of a cluster registers -----------------------------------------------------------------


def registers(registrar: RegistrarPeer) -> list[bool]:
    """Of each REGISTER, whether it registers or takes leave."""
    return ["Expires: 0" not in each for each in registrar.requests if each.startswith("REGISTER")]


async def test_an_account_of_one_worker_stands_by_until_it_is_held() -> None:
    async with RegistrarPeer(answer="200 OK\r\nExpires: 3600") as registrar:
        keys = account(registrar.port) | {"one_worker": True}
        async with worker(Recorder(), left_open=4, cluster=True, accounts=[keys]) as endpoint:
            (held,) = endpoint.one_worker
            assert endpoint.registrations[0].state == "standby" and not registrar.requests
            assert held.address == f"alice@127.0.0.1:{registrar.port}"
            assert not held.stand_by("another worker registers it"), "there is nothing to take back"
            assert endpoint.registrations[0].reason == "another worker registers it"
            held.hold()
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            held.hold()
            await until(lambda: endpoint.counters.registrations_ok == 2)
            assert registers(registrar) == [True, True], "once more, for the registrar may have forgotten it"
            assert held.stand_by("enough")
            await held.left.wait()
            assert endpoint.registrations[0].state == "standby" and endpoint.registrations[0].reason == "enough"
            assert registers(registrar) == [True, True, False]
            held.hold()
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
    assert registers(registrar) == [True, True, False, True, False]


@pytest.mark.parametrize("answer", ["200 OK\r\nExpires: 3600", "403 Forbidden"])
async def test_an_account_that_is_given_up_before_the_answer_is_not_registered_in_the_end(answer: str) -> None:
    async with RegistrarPeer(answer=answer) as registrar:
        keys = account(registrar.port) | {"one_worker": True}
        async with worker(Recorder(), left_open=4, cluster=True, accounts=[keys]) as endpoint:
            (held,) = endpoint.one_worker
            held.hold()
            async with timeout(5):
                while endpoint.registrations[0].state != "registering":  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert held.stand_by("enough")
            await held.left.wait()
            assert endpoint.registrations[0].state == "standby"
            assert registers(registrar) == ([True, False] if answer.startswith("200") else [True])
            assert endpoint.counters.registrations_failed == 0


async def test_an_account_that_is_held_again_while_it_takes_leave_is_registered_in_the_end() -> None:
    async with RegistrarPeer(answer="200 OK\r\nExpires: 3600") as registrar:
        keys = account(registrar.port) | {"one_worker": True}
        async with worker(Recorder(), left_open=4, cluster=True, accounts=[keys]) as endpoint:
            (held,) = endpoint.one_worker
            held.hold()
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            assert held.stand_by("enough")
            held.hold()
            await until(lambda: len(registrar.requests) == 3)
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            assert registers(registrar) == [True, False, True]
            held.hold()
            assert held.stand_by("enough"), "while the refresh is under way"
            await held.left.wait()
            assert registers(registrar)[-1] is False
