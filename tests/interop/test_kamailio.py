"""Calls come through Kamailio as docs/how-to/pbx configures it: recorded routes, TLS, another worker in need."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.asterisk.calls import heard
from lab.asterisk.dialled import hold_and_say_again, wait_ended, wait_said
from lab.asterisk.pbx import ADDRESS, PASSWORD, Asterisk
from lab.events.story import check_story
from lab.network.ports import ports
from lab.patience import until
from lab.sip.kamailio import CALLER, Kamailio, kamailio, outbound_proxy, own_address
from lab.sip.rtp_sender import RtpSender
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Expect, Pause, Send, mixed, offer, scenario
from lab.sip.siprec import ANSWERED, PEOPLE, REQUIRE, ROLES, SRC, both, line, metadata
from lab.sip.softphone import Softphone, phone
from lab.worker.peers import Worker, worker
from lab.worker.qwen import QWEN, SAID, file
from lab.worker.readiness import ready

TRACED = {"LOG__SIP_TRACE": "true", "LOG__FORMAT": "json"}
INVITE = Send("INVITE", offer(line(30000, "", "sendrecv")))


def allowed() -> dict[str, str]:
    return {"SIP__ALLOW": json.dumps([own_address()])}


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker that knows the proxy, with its engine loaded."""
    options = QWEN | ROLES | TRACED | allowed() | {"ASR__PRELOAD": "true", "PRIVACY__CARDS": "false"}
    with worker(tmp_path_factory.mktemp("worker"), **options) as started:
        until(lambda: ready(started), 60)
        yield started


@pytest.fixture(scope="module", params=["udp", "tcp"])
def proxy(
    request: pytest.FixtureRequest, system: Path, trusting: Worker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kamailio]:
    """By `params` it speaks to the worker."""
    folder = tmp_path_factory.mktemp("proxy") / "kamailio"
    with kamailio(system, folder, trusting.sip_port, transport=request.param) as started:
        yield started


def dial(proxy: Kamailio, trusting: Worker, caller: Softphone, transport: str) -> str:
    """The call id that the worker gives to a call through the proxy."""
    known = {call["call_id"] for call in trusting.calls()}
    port = proxy.tls_port if transport == "tls" else proxy.sip_port
    caller.do("dial", f"sip:0800123@{proxy.address}:{port};transport={transport}")
    (call,) = until(lambda: [each for each in trusting.calls() if each["call_id"] not in known], 20, "a call")
    return str(call["call_id"])


def crossed(trusting: Worker, external_id: str, method: str, direction: str) -> set[str]:
    """Where a request of that method and call has come from (`<`) or gone to (`>`), by the worker's trace."""
    entries = [json.loads(line) for line in trusting.log.read_text().splitlines() if external_id in line]
    return {
        entry["peer"].rpartition(":")[0]
        for entry in entries
        if entry.get("direction") == direction and entry["message"].startswith(f"{method} ")
    }


@pytest.mark.parametrize("transport", ["udp", "tcp", "tls"])
def test_words_come_through_a_proxy(
    proxy: Kamailio, trusting: Worker, system: Path, tmp_path: Path, transport: str
) -> None:
    """Who calls by TLS encrypts its audio as well. The end of the call takes the recorded route."""
    account = "regint=0" + (";mediaenc=srtp-mand" if transport == "tls" else "")
    with phone(system, tmp_path / "phone", f"sip:ann@{CALLER};transport={transport}", account=account) as ann:
        call_id = dial(proxy, trusting, ann, transport)
        wait_said(trusting, call_id, SAID["customer"])
        ann.do("hangup")
        events = wait_ended(trusting, call_id)
    started, ended = events[0], events[-1]
    assert (started["from"], started["to"], started["legs"][0]["codec"]) == ("ann", "0800123", "PCMU")
    assert (ended["reason"], ended["legs"][0]["lost"]) == ("hangup", 0)
    for method in ("INVITE", "ACK", "BYE"):
        assert crossed(trusting, started["external_id"], method, "<") == {proxy.address}


def test_a_hold_takes_the_recorded_route(proxy: Kamailio, trusting: Worker, system: Path, tmp_path: Path) -> None:
    with phone(system, tmp_path / "phone", f"sip:ann@{CALLER}", again_s=10) as ann:
        call_id = dial(proxy, trusting, ann, "udp")
        wait_said(trusting, call_id, SAID["customer"])
        hold_and_say_again(trusting, call_id, ann, SAID["customer"])
        ann.do("hangup")
        events = wait_ended(trusting, call_id)
    assert [event["type"] for event in events if event["type"].startswith("call.")] == [
        "call.started",
        "call.held",
        "call.resumed",
        "call.ended",
    ]


async def test_the_worker_hangs_up_through_the_proxy(proxy: Kamailio, trusting: Worker, tmp_path: Path) -> None:
    known = {call["call_id"] for call in trusting.calls()}
    called = Sipp(tmp_path).start(scenario(INVITE, Expect("BYE")), f"{proxy.address}:{proxy.sip_port}")
    (call,) = await asyncio.to_thread(
        until, lambda: [each for each in trusting.calls() if each["call_id"] not in known], 20
    )
    await asyncio.to_thread(trusting.hang_up, call["call_id"])
    await called
    assert crossed(trusting, call["external_id"], "BYE", ">") == {proxy.address}


async def test_a_recording_session_comes_through_the_proxy(proxy: Kamailio, trusting: Worker, tmp_path: Path) -> None:
    """Its metadata with it, in the INVITE and in what comes later; the proxy goes on by the other transport."""
    transport = {"tcp": "u1", "udp": "t1"}[proxy.transport]
    senders = [RtpSender(), RtpSender()]
    log, before = tmp_path / "ports", len(trusting.calls())
    moved = metadata(PEOPLE | {"2": ("c", "sip:4799@pbx.example", "Cy")})
    steps = scenario(
        Send("INVITE", mixed(both(senders), metadata()), REQUIRE, has=ANSWERED, keep={"ports": "m=audio.*"}),
        Pause(9_000),
        Send("UPDATE", moved),
        Send("BYE"),
        contact=SRC,
    )
    options = ("-trace_logs", "-log_file", str(log))
    target = f"{proxy.address}:{proxy.sip_port}"
    called = Sipp(tmp_path).start(steps, target, transport=transport, timeout_s=40, options=options)
    answered = re.compile(r"m=audio ([0-9]+) ")
    found = await asyncio.to_thread(
        until, lambda: called.done() or (log.exists() and answered.findall(log.read_text())), 20, "an answer"
    )
    if called.done():
        await called
    codes = [file(name).read_bytes() for name in ("customer", "agent")]
    await asyncio.gather(*(s.talk(c, int(p)) for s, c, p in zip(senders, codes, found, strict=True)))
    await called
    for sender in senders:
        sender.close()
    ended = await asyncio.to_thread(trusting.wait_ended, before + 1)
    events = trusting.events(ended[-1]["call_id"])
    finals = check_story(events)
    assert events[0]["source"] == "siprec"
    said = {role: [final["text"] for final in finals if final["role"] == role] for role in ("customer", "agent")}
    assert said == {role: SAID[role] for role in said}
    assert [(each["leg"], each["name"]) for each in events if each["type"] == "leg.updated"] == [("2", "Cy")]


async def test_only_who_may_gets_through(proxy: Kamailio, trusting: Worker, tmp_path: Path) -> None:
    known, target = len(trusting.calls()), f"{proxy.address}:{proxy.sip_port}"
    refused = Send("INVITE", INVITE.body, answer=403)
    await Sipp(tmp_path).run(scenario(refused), target, source="127.0.0.2")
    assert len(trusting.calls()) == known


async def test_a_worker_that_does_not_know_the_proxy_refuses(system: Path, tmp_path: Path) -> None:
    with worker(tmp_path) as wary, kamailio(system, tmp_path / "kamailio", wary.sip_port) as proxy:
        refused = Send("INVITE", INVITE.body, answer=403)
        await Sipp(tmp_path).run(scenario(refused), f"{proxy.address}:{proxy.sip_port}")
        assert not wary.calls()


async def test_the_caller_hears_that_all_are_full(system: Path, tmp_path: Path) -> None:
    options = allowed() | {"SIP__MAX_CALLS": "1"}
    with worker(tmp_path, **options) as full, kamailio(system, tmp_path / "kamailio", full.sip_port) as proxy:
        sipp, target = Sipp(tmp_path), f"{proxy.address}:{proxy.sip_port}"
        held = sipp.start(scenario(INVITE, Pause(3000), Send("BYE")), target)
        await asyncio.to_thread(until, full.calls, 20)
        await sipp.run(scenario(Send("INVITE", INVITE.body, answer=486)), target)
        await held


def refused_calls(worker: Worker) -> float:
    """INVITEs that the worker has refused; the metric is not there before the first one."""
    name = "mediaworker_sip_refused_total"
    return worker.metric(name) if f"{name}{{" in worker.get("/metrics") else 0


def passed_over(proxy: Kamailio, port: int) -> bool:
    """Whether Kamailio sends no calls to the worker at that port, by what it was answered to OPTIONS."""
    found = re.search(rf"URI: sip:\S+:{port};\S+\s+FLAGS: (\w)", proxy.ask("dispatcher.list"))
    assert found is not None
    return found[1] != "A"


@pytest.mark.parametrize("trouble", ["full", "drains"])
async def test_a_worker_that_refuses_by_options_is_sent_no_call(system: Path, tmp_path: Path, trouble: str) -> None:
    """Kamailio sees it at its next OPTIONS, at most ten seconds later, and takes it back when it answers 200 again."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    options = allowed() | {"SIP__MAX_CALLS": "1", "SHUTDOWN_S": "60", "SIP__PEER_CHECK_S": "0"}
    sipp = Sipp(tmp_path)
    with worker(tmp_path / "first", **options) as first, worker(tmp_path / "second", **allowed()) as second:
        with kamailio(system, tmp_path / "kamailio", first.sip_port, second.sip_port) as proxy:
            held = sipp.start(scenario(INVITE, Expect("BYE")), f"127.0.0.1:{first.sip_port}", timeout_s=90)
            (busy,) = await asyncio.to_thread(until, first.calls, 20)
            if trouble == "drains":
                first.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(until, lambda: passed_over(proxy, first.sip_port), 30)
            for _ in range(4):
                await sipp.run(scenario(INVITE, Pause(200), Send("BYE")), f"{proxy.address}:{proxy.sip_port}")
            assert len(second.wait_ended(4)) == 4
            assert refused_calls(first) == 0
            if trouble == "drains":
                first.process.send_signal(signal.SIGTERM)
            else:
                await asyncio.to_thread(first.hang_up, busy["call_id"])
                await asyncio.to_thread(until, lambda: not passed_over(proxy, first.sip_port), 30)
            await held


@pytest.mark.parametrize("transport", ["udp", "tcp"])
@pytest.mark.parametrize("trouble", ["full", "drains", "is not there"])
async def test_another_worker_takes_the_call(system: Path, tmp_path: Path, trouble: str, transport: str) -> None:
    """Of four calls two are meant for the worker that cannot."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    options = allowed() | {"SIP__MAX_CALLS": "1", "SHUTDOWN_S": "60", "SIP__PEER_CHECK_S": "0"}
    call = scenario(INVITE, Pause(500), Send("BYE"))
    sipp = Sipp(tmp_path)
    with worker(tmp_path / "first", **options) as first, worker(tmp_path / "second", **allowed()) as second:
        absent = trouble == "is not there"
        where = (ports(1)[0] if absent else first.sip_port), second.sip_port
        with kamailio(system, tmp_path / "kamailio", *where, transport=transport) as proxy:
            held = asyncio.create_task(asyncio.sleep(0))
            if not absent:
                direct = scenario(INVITE, Expect("BYE"))
                held = sipp.start(direct, f"127.0.0.1:{first.sip_port}", timeout_s=60)
                await asyncio.to_thread(until, first.calls, 20)
            if trouble == "drains":
                first.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(until, lambda: "draining" in first.log.read_text())
            # While a worker is waited for the INVITE is sent again, and the 100 to that may come behind the 200.
            lenient = ("-default_behaviors", "all,-abortunexp")
            for _ in range(4):
                await sipp.run(call, f"{proxy.address}:{proxy.sip_port}", timeout_s=20, options=lenient)
            assert len(second.wait_ended(4)) == 4
            if not absent:
                # Fewer when Kamailio has asked it by OPTIONS meanwhile, which it does every ten seconds.
                assert refused_calls(first) <= 2
            else:  # it is asked every ten seconds, and then no call waits for it any more
                until(lambda: passed_over(proxy, where[0]), 40)
        if trouble == "drains":
            first.process.send_signal(signal.SIGTERM)
        elif not absent:
            (busy,) = first.calls()
            await asyncio.to_thread(first.hang_up, busy["call_id"])
        await held


def test_an_account_behind_an_outbound_proxy(system: Path, asterisk: Asterisk, tmp_path: Path) -> None:
    """The registrar's name is the proxy's alone to know; calls come by the proxy, which is not in `sip.allow`."""
    with outbound_proxy(system, tmp_path / "kamailio", f"{ADDRESS}:{asterisk.sip_port}") as proxy:
        uri = f"sip:{proxy.address}:{proxy.sip_port};transport=tcp"
        entry = {"registrar": "sip:office.invalid", "proxy": uri, "password": PASSWORD, "name": "extension"}
        entry |= {"user": "worker-id", "auth_user": "Xk7fQ2pL"}
        account = "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in entry.items()) + "}"
        with worker(tmp_path, **QWEN, SIP__ACCOUNTS=f"[{account}]", ASR__PRELOAD="true", **TRACED) as running:
            until(lambda: ready(running), 60, "registered")
            assert f"Path: <sip:{proxy.address}:{proxy.sip_port};" in "".join(
                asterisk.messages("REGISTER sip:office.invalid", "Xk7fQ2pL")
            )
            events = heard(asterisk, running, "worker-id", "customer")
            assert [final["text"] for final in check_story(events)] == SAID["customer"]
            assert events[0]["account"] == "extension" and events[-1]["reason"] == "hangup"
            assert f"Record-Route: <sip:{proxy.address}" in running.log.read_text()
        assert not asterisk.contact("worker-id"), "taken back, by the same way"
