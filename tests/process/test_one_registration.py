"""An account that one worker of a cluster registers: which one, and who takes over, at a PBX with a single contact."""

from __future__ import annotations

import asyncio
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.network.cutting_proxy import CuttingProxy
from lab.network.nats_servers import NatsServer, nats
from lab.patience import seconds, until
from lab.sip.one_contact import OneContactRegistrar
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Expect, Pause, Send, offer, scenario
from lab.worker.cluster import environ
from lab.worker.peers import Worker, worker

INVITE = Send("INVITE", offer("m=audio 30000 RTP/AVP 0"))
TAKEOVER_S = 15
HANDOVER_S = 6


def options(registrar: OneContactRegistrar, *servers: NatsServer | str, users: str = "alice") -> dict[str, str]:
    form = '{{registrar = "{}", user = "{user}", one_worker = true, name = "{user}"}}'
    accounts = [form.format(registrar.uri, user=user) for user in users.split()]
    sip = {"SIP__ENABLED": "true", "SIP__ACCOUNTS": f"[{', '.join(accounts)}]", "SHUTDOWN_S": "40"}
    return environ(*servers, **LISTENER, **sip)


@contextmanager
def workers(folder: Path, *each: dict[str, str]) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        started = []
        for number, environment in enumerate(each):
            (folder / f"worker-{number}").mkdir(parents=True)
            started.append(stack.enter_context(worker(folder / f"worker-{number}", LISTENER_PATH, **environment)))
        yield started


def state(running: Worker) -> dict[str, Any]:
    """Of its only account. The worker has to be ready."""
    (registration,) = running.get("/readyz")["sip"]
    return dict(registration)


def unready(running: Worker) -> bool:
    try:
        running.get("/readyz")
    except urllib.error.HTTPError as error:
        error.close()
        return True
    return False


def stands_by(running: Worker) -> bool:
    return not unready(running) and state(running)["state"] == "standby"


def holder(registrar: OneContactRegistrar, running: Sequence[Worker], *others: Worker) -> Worker:
    """The worker that calls go to, once all of the others stand by."""
    found: list[Worker] = until(
        lambda: [each for each in running if each.sip_port == registrar.contact_port], TAKEOVER_S
    )
    for each in (*running, *others):
        if each is not found[0]:
            until(lambda each=each: stands_by(each), TAKEOVER_S)
    return found[0]


def registered(registrar: OneContactRegistrar, running: Worker, within_s: float) -> None:
    until(lambda: registrar.contact_port == running.sip_port, within_s, "its registration")


def test_one_worker_has_the_account_and_another_one_when_that_is_killed_or_drains(tmp_path: Path) -> None:
    with nats(tmp_path / "nats") as (server,), OneContactRegistrar() as registrar:
        environment = options(registrar, server)
        with workers(tmp_path, environment, environment) as (a, b):
            first = holder(registrar, (a, b))
            second = b if first is a else a
            until(lambda: state(second)["reason"] == "another worker registers it")
            assert state(first)["state"] == "registered" and not unready(second)
            assert [each.metric("mediaworker_sip_registered") for each in (first, second)] == [1, 0]
            assert [each.metric("mediaworker_sip_standby") for each in (first, second)] == [0, 1]
            asyncio.run(Sipp(tmp_path).run(scenario(INVITE, Pause(200), Send("BYE")), called(registrar)))
            first.wait_ended(1)

            first.process.kill()
            first.process.wait()
            registered(registrar, second, TAKEOVER_S)
            until(lambda: state(second)["state"] == "registered")
            first.start_again()
            until(lambda: first.log.read_text().count("cluster joined") == 2)
            assert holder(registrar, (second,), first) is second, "it does not argue"
            assert registrar.count(second.sip_port) == 1 and registrar.count(first.sip_port) == 1

            asyncio.run(drained_with_a_call(tmp_path, registrar, second, first))
            assert registrar.history[-2:] == [(second.sip_port, False), (first.sip_port, True)], "one after the other"


def called(registrar: OneContactRegistrar) -> str:
    return f"127.0.0.1:{registrar.contact_port}"


async def drained_with_a_call(folder: Path, registrar: OneContactRegistrar, old: Worker, new: Worker) -> None:
    """The live call goes on at the old worker until it is hung up; the next one is for the new worker."""
    caller = Sipp(folder / "worker-0")
    live = caller.start(scenario(INVITE, Expect("BYE")), called(registrar), timeout_s=60)
    call = await asyncio.to_thread(until, lambda: next((c for c in old.calls() if c["state"] == "live"), None))
    known = len(new.calls())
    old.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(registered, registrar, new, HANDOVER_S)
    await caller.run(scenario(INVITE, Pause(200), Send("BYE")), called(registrar))
    await asyncio.to_thread(until, lambda: len(new.calls()) > known)
    assert not live.done()
    await asyncio.to_thread(old.hang_up, call["call_id"])
    await live
    await asyncio.to_thread(old.process.wait, seconds(20))


def test_a_worker_that_stands_still_takes_its_registration_back_when_it_goes_on(tmp_path: Path) -> None:
    """It refreshes its registration first, which pushes out the contact of the one that has taken over."""
    with nats(tmp_path / "nats") as (server,), OneContactRegistrar(expires_s=12) as registrar:
        environment = options(registrar, server)
        with workers(tmp_path, environment, environment) as (a, b):
            first = holder(registrar, (a, b))
            second = b if first is a else a
            first.process.send_signal(signal.SIGSTOP)
            registered(registrar, second, TAKEOVER_S)
            begun = len(registrar.history)
            first.process.send_signal(signal.SIGCONT)
            until(lambda: (first.sip_port, False) in registrar.history[begun:], 10, "it takes its registration back")
            left = begun + registrar.history[begun:].index((first.sip_port, False))
            until(lambda: (second.sip_port, True) in registrar.history[left:], 5, "and the other one registers anew")
            assert holder(registrar, (a, b)) is second
            settled = len(registrar.history)
            until(lambda: len(registrar.history) >= settled + 2, 30, "refreshed")
            assert {port for port, _ in registrar.history[settled:]} == {second.sip_port}


def test_without_nats_the_holder_keeps_the_account_and_nobody_begins(tmp_path: Path) -> None:
    with nats(tmp_path / "nats") as (server,), OneContactRegistrar(expires_s=8) as registrar:
        environment = options(registrar, server)
        with workers(tmp_path, environment, environment) as (a, b):
            first = holder(registrar, (a, b))
            second = b if first is a else a
            server.kill()
            until(lambda: "the cluster is not there" in second.log.read_text())
            second.stop()
            second.start_again()
            until(lambda: "cluster.nats cannot be reached" in second.log.read_text(), 40)
            until(lambda: not unreachable(second))
            assert state(second)["reason"] == "the cluster has not been reached yet"
            assert "cluster: this worker cannot take over the registration of alice now" in warnings(second)
            assert not any("registration" in each for each in warnings(first))
            refreshed = registrar.count(first.sip_port)
            until(lambda: registrar.count(first.sip_port) >= refreshed + 3, 40, "refreshed")
            server.start_again()
            until(lambda: state(second)["reason"] == "another worker registers it", 40)
            refreshed = registrar.count(first.sip_port)
            until(lambda: registrar.count(first.sip_port) >= refreshed + 2, 40, "refreshed")
            assert {port for port, _ in registrar.history} == {first.sip_port}, "nobody else has ever registered"


def unreachable(running: Worker) -> bool:
    try:
        running.get("/healthz")
    except OSError:
        return True
    return False


def warnings(running: Worker) -> list[str]:
    return list(running.get("/readyz")["warnings"])


@pytest.mark.parametrize("remove_existing", [True, False])
async def test_a_worker_that_was_cut_off_takes_its_registration_back(tmp_path: Path, remove_existing: bool) -> None:
    """A PBX that lets no second contact push out the first refuses the new holder until the old one has taken leave."""
    with nats(tmp_path / "nats") as (server,), OneContactRegistrar(remove_existing=remove_existing) as registrar:
        async with CuttingProxy() as proxy:
            proxy.target = server.port
            far = options(registrar, f"nats://127.0.0.1:{proxy.port}")
            with ExitStack() as stack:
                enter = stack.enter_context
                a = await asyncio.to_thread(enter, workers(tmp_path / "a", far))
                await asyncio.to_thread(registered, registrar, a[0], TAKEOVER_S)
                b = await asyncio.to_thread(enter, workers(tmp_path / "b", options(registrar, server)))
                await asyncio.to_thread(until, lambda: stands_by(b[0]))
                proxy.target = None
                proxy.cut()
                taken = "this worker registers the account from now on"
                await asyncio.to_thread(until, lambda: taken in b[0].log.read_text(), TAKEOVER_S)
                assert state(a[0])["state"] == "registered", "it cannot know"
                proxy.target = server.port
                await asyncio.to_thread(until, lambda: stands_by(a[0]), TAKEOVER_S)
                assert registrar.count(a[0].sip_port, registers=False) == 1
                await asyncio.to_thread(until, lambda: registrar.history[-1] == (b[0].sip_port, True), 5)
                await asyncio.to_thread(holder, registrar, b, *a)


def test_each_of_several_accounts_has_one_worker(tmp_path: Path) -> None:
    """Also one with letters in its name that the key of a bucket may not have."""
    users = ("alice", "4711*1", "a!b")
    with nats(tmp_path / "nats") as (server,), OneContactRegistrar() as registrar:
        environment = options(registrar, server, users=" ".join(users))
        with workers(tmp_path, environment, environment) as pair:
            for each in pair:
                until(lambda each=each: settled(each))
            states = [{each["account"]: each["state"] for each in one.get("/readyz")["sip"]} for one in pair]
            for user in users:
                assert sorted(of[user] for of in states) == ["registered", "standby"]
            assert len(registrar.history) == len(users)


def settled(running: Worker) -> bool:
    if unready(running):
        return False
    registrations = running.get("/readyz")["sip"]
    return all(each["reason"] in ("OK", "another worker registers it") for each in registrations)
