"""Several accounts of one worker: which of them a call comes by."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from lab.sip.endpoint import PCMU, Recorder, codes, sipp, until, worker
from lab.sip.registrar_peer import RegistrarPeer
from lab.sip.sip_peer import SipPeer, sdp
from lab.sip.sipp_caller import Sipp

__all__ = ["codes", "sipp"]


async def accounts_of(calls: list[tuple[str, str]], *accounts: dict[str, object], **more: object) -> list[str]:
    """Of calls from the registrars' address, by request URI and To. `{own}`: the worker's address."""
    handler = Recorder()
    async with worker(handler, left_open=2 * len(accounts), accounts=accounts, **more) as endpoint:
        await until(lambda: all(each.state == "registered" for each in endpoint.registrations), timeout_s=10)
        found = []
        for uri, to in calls:
            with closing(SipPeer(endpoint.port)) as caller:
                own = f"127.0.0.1:{endpoint.port}"
                caller.uri = to.replace("{own}", own)
                cseq = caller.send("INVITE", sdp(40000), uri=uri.replace("{own}", own))
                answer = await caller.answer(cseq, status=200)
                assert "<sip:471" in answer.header("contact"), "an address that the registrar has"
                caller.send("ACK", cseq=cseq)
                found.append(handler.calls[-1].account)
                await caller.bye()
        return found


def account(peer: RegistrarPeer, user: str, name: str = "", **more: object) -> dict[str, object]:
    return {
        "registrar": f"sip:localhost:{peer.port};transport=tcp",
        "user": user,
        "password": "secret",
        "name": name,
        **more,
    }


async def test_two_accounts_at_one_pbx_are_told_apart() -> None:
    """`sip.host` is a specific address here, which is in the Contacts, and not the registrar's name."""
    async with RegistrarPeer() as first, RegistrarPeer() as second:
        calls = {
            ("sip:4711@{own};ob", "sip:4711@{own}"): "sales",
            ("sip:4712@{own};ob", "tel:+331234"): "4712",
            ("sip:4712@{own}", "sip:+331234@pbx.example"): "4712",
            ("sip:+331234@{own}", "sip:4711@127.0.0.1"): "sales",
            ("sip:+331234@{own}", "tel:+331234"): "",
        }
        keys = account(first, "4711", "sales"), account(second, "4712")
        assert await accounts_of(list(calls), *keys) == list(calls.values())
        contacts = [re.search(r"(?m)^Contact: *<([^>]*)>", peer.requests[0]) for peer in (first, second)]
        assert all(each and "line=" not in each[1] for each in contacts)


async def test_the_same_extension_at_two_registrars_is_told_apart_by_what_was_registered() -> None:
    async with RegistrarPeer() as north, RegistrarPeer() as south:
        handler = Recorder()
        keys = account(north, "100", "north"), account(south, "100", "south")
        async with worker(handler, left_open=4, accounts=keys) as endpoint:
            await until(lambda: all(each.state == "registered" for each in endpoint.registrations), timeout_s=10)
            for peer, name in ((south, "south"), (north, "north")):
                contact = re.search(r"(?m)^Contact: *<([^>]*)>", peer.requests[0])
                assert contact and re.search(r";line=[0-9a-f]{10}\b", contact[1])
                await peer.invite(contact[1])
                assert handler.calls[-1].account == name
                assert peer.answer_contact == contact[1], "where requests within the call are to come"
                handler.calls[-1].hangup()


async def test_who_shows_credentials_is_that_user_whatever_is_dialled(sipp: Sipp, codes: Path) -> None:
    handler = Recorder()
    keys = {"accounts": [{"registrar": "sip:pbx.invalid:5060", "user": "1000"}], "digest": ["MD5"]}
    users = [{"user": "branch", "password": "secret"}]
    async with worker(handler, trusted=(), users=users, challenge="everybody", **keys) as endpoint:
        assert endpoint.control.accounts[0].user == "1000"
        values = {**PCMU, "audio": f"{codes},1,0,PCMU/8000", "talk_ms": 100, "user": "branch", "password": "secret"}
        await sipp.run("with_digest", f"127.0.0.1:{endpoint.port}", **values)
        await until(lambda: ("end", "hangup") in handler.log)
        assert [(call.account, call.to_uri.partition("@")[0]) for call in handler.calls] == [("branch", "sip:1000")]
