"""The worker registers with Asterisk, and again when Asterisk has forgotten it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path

import pytest

from lab.asterisk import pbx
from lab.asterisk.calls import heard
from lab.asterisk.dialled import wait_ended
from lab.events.story import check_story
from lab.network.name_server import NameServer
from lab.patience import until
from lab.sip import endpoint
from lab.worker.peers import worker
from lab.worker.qwen import QWEN, SAID
from lab.worker.readiness import ready
from sip.pjsip import server_location


@pytest.mark.parametrize(("user", "algorithm"), [("worker", "MD5"), ("worker256", "SHA-256")])
@pytest.mark.parametrize("transport", ["udp", "tcp", "tls"])
def test_a_registration_by_digest(
    asterisk: pbx.Asterisk, tmp_path: Path, user: str, algorithm: str, transport: str
) -> None:
    with worker(tmp_path, **asterisk.account(user, transport)) as registered:
        until(lambda: ready(registered), 20, "registered")
        contact = until(lambda: asterisk.contact(user), 20, "its contact")
        assert re.match(rf"{user}/sip:{user}@127\.0\.0\.1:\d+", contact)
        until(lambda: "Avail" in asterisk.contact(user), 20, "an answer to OPTIONS")
        request = asterisk.messages("REGISTER sip:", f'username="{user}"')[-1]
        assert re.findall(r"algorithm=\"?([A-Za-z0-9-]+)", request) == [algorithm]
        assert f"SIP/2.0/{transport.upper()} " in request
    assert not asterisk.contact(user), "taken back at its end"


def test_a_wrong_password_is_said_and_leaves_no_contact(asterisk: pbx.Asterisk, tmp_path: Path) -> None:
    account = {key: value.replace(pbx.PASSWORD, "wrong") for key, value in asterisk.account().items()}
    with worker(tmp_path, **account) as refused:
        until(lambda: refused.metric("mediaworker_sip_registrations_failed_total"), 20)
        assert not ready(refused)
        assert "state=failed" in refused.log.read_text()
        assert not asterisk.contact("worker")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", ["udp", "tcp", "tls"])
def test_an_asterisk_that_has_forgotten_all_is_registered_with_again(
    system: Path, tmp_path: Path, transport: str
) -> None:
    with (
        pbx.running(system, tmp_path) as asterisk,
        worker(
            tmp_path, **QWEN, ASR__PRELOAD="true", **asterisk.account(transport=transport, expires_s=30)
        ) as listening,
    ):
        until(lambda: ready(listening), 60, "registered")
        asterisk.stop(signal.SIGKILL)
        for store in (tmp_path / "var").glob("astdb*"):
            store.unlink()
        asterisk.start()
        assert not asterisk.contact("worker")
        until(lambda: asterisk.contact("worker"), 90, "registered again")
        finals = check_story(heard(asterisk, listening, "worker", "customer"))
        assert [final["text"] for final in finals] == SAID["customer"]


def test_an_asterisk_that_comes_back_still_knows_the_worker(system: Path, tmp_path: Path) -> None:
    """Its registrations are in its database: the worker is called before it has noticed anything."""
    with (
        pbx.running(system, tmp_path) as asterisk,
        worker(tmp_path, **QWEN, ASR__PRELOAD="true", **asterisk.account()) as listening,
    ):
        until(lambda: ready(listening), 60, "registered")
        registrations = listening.metric("mediaworker_sip_registrations_ok_total")
        asterisk.stop()
        asterisk.start()
        finals = check_story(heard(asterisk, listening, "worker", "customer"))
        assert [final["text"] for final in finals] == SAID["customer"]
        assert listening.metric("mediaworker_sip_registrations_ok_total") == registrations


@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_calls_of_an_asterisk_that_was_killed_keep_nobody_out(system: Path, tmp_path: Path, transport: str) -> None:
    """It answers for silent calls that it has; started again it knows none of them, and there is room for new ones."""
    options = QWEN | {"ASR__PRELOAD": "true", "SIP__MAX_CALLS": "1", "SIP__PEER_CHECK_S": "3"}
    with (
        pbx.running(system, tmp_path) as asterisk,
        worker(tmp_path, **options, **asterisk.account(transport=transport, expires_s=30)) as listening,
    ):
        until(lambda: ready(listening), 60, "registered")
        asterisk.cli("channel originate PJSIP/worker application Wait 200")
        (silent,) = until(listening.calls, 20, "a call")
        until(lambda: listening.metric("mediaworker_sip_peers_asked_total") >= 3, 30, "questions")
        assert asterisk.messages("SIP/2.0 200 OK", "OPTIONS")
        assert listening.metric("mediaworker_calls_active") == 1
        asterisk.stop(signal.SIGKILL)
        asterisk.start()
        until(lambda: listening.metric("mediaworker_calls_active") == 0, 40, "the end of the call")
        assert wait_ended(listening, silent["call_id"])[-1]["reason"] == "timeout"
        until(lambda: ready(listening), 90, "registered again")
        assert check_story(heard(asterisk, listening, "worker", "customer"))


def extension(asterisk: pbx.Asterisk, registrar: str = "", expires_s: int = 300) -> dict[str, object]:
    """An account whose authentication ID is not its extension."""
    uri = registrar or f"sip:{pbx.ADDRESS}:{asterisk.sip_port}"
    names = {"user": "worker-id", "auth_user": "Xk7fQ2pL", "name": "extension"}
    return {"registrar": uri, "password": pbx.PASSWORD, "expires_s": expires_s, **names}


def test_calls_show_which_of_two_accounts_at_one_pbx_they_come_by(asterisk: pbx.Asterisk, tmp_path: Path) -> None:
    """To is the Contact there, and the worker listens at a specific address."""
    first = {"registrar": f"sip:{pbx.ADDRESS}:{asterisk.sip_port}", "user": "worker", "password": pbx.PASSWORD}
    accounts = ", ".join(
        "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in each.items()) + "}"
        for each in (first, extension(asterisk))
    )
    options = {"SIP__ACCOUNTS": f"[{accounts}]", "SIP__HOST": pbx.ADDRESS, "ASR__PRELOAD": "true"}
    with worker(tmp_path, **QWEN, **options) as listening:
        until(lambda: ready(listening), 60, "registered")
        for peer, account in (("worker-ulaw", "worker"), ("worker-id", "extension")):
            started = heard(asterisk, listening, peer, "customer")[0]
            assert (started["account"], started["to"]) == (account, peer.removesuffix("-ulaw"))
        assert sorted(call["account"] for call in listening.calls()) == ["extension", "worker"]


async def test_a_registrar_that_srv_records_name_and_a_binding_among_those_of_others(
    asterisk: pbx.Asterisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own binding lasts for 90 s, another worker's at the same extension for 35."""
    service = "_sip._tcp.office.example"
    records = {
        "office.example NAPTR": (f'10 10 "s" "SIP+D2T" "" {service}.',),
        f"{service} SRV": ("10 0 9 localhost.", f"20 0 {asterisk.sip_port} localhost."),
    }
    other = extension(asterisk, expires_s=35)
    entry = "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in other.items()) + "}"
    with NameServer(records) as names, worker(tmp_path, SIP__ACCOUNTS=f"[{entry}]", **QWEN) as another:
        monkeypatch.setattr(server_location, "resolver", names.resolver)
        await asyncio.to_thread(until, lambda: another.metric("mediaworker_sip_registrations_ok_total"), 20)
        own = extension(asterisk, "sip:office.example", 90)
        async with endpoint.worker(endpoint.Recorder(), left_open=4, accounts=[own]) as listening:
            await endpoint.until(lambda: listening.registrations[0].state == "registered", timeout_s=20)
            assert str(asterisk.sip_port) in listening.registrations[0].registrar
            answer = asterisk.messages("SIP/2.0 200 OK", "REGISTER", "expires=89")[-1:] or asterisk.messages(
                "SIP/2.0 200 OK", "REGISTER", "expires=90"
            )
            assert answer and answer[-1].count("Contact:") == 2, answer
            assert 70 <= listening._accounts[0].getInfo().regExpiresSec <= 85
