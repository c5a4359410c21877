"""OPTIONS outside a call says whether an INVITE would be taken (RFC 3261 section 11.2), and `readyz` agrees with it."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import urllib.error
from contextlib import closing
from pathlib import Path

import pytest

from asr.utterance import EngineStatus
from config.load import parse
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.patience import until
from lab.sip.endpoint import Recorder
from lab.sip.endpoint import until as until_here
from lab.sip.endpoint import worker as endpoint_here
from lab.sip.sip_peer import SipPeer, sdp
from lab.worker.peers import Worker, worker
from mediaworker.service.worker import Worker as WorkerInProcess
from sip.protocol.message import SipMessage

REFUSED = ("SIP/2.0 503 Service Unavailable", "10")


async def options(peer: SipPeer) -> SipMessage:
    return await peer.answer(peer.send("OPTIONS", within=False), "OPTIONS")


async def told(peer: SipPeer) -> tuple[str, str]:
    """Start line and Retry-After."""
    answer = await options(peer)
    return answer.start_line, answer.header("retry-after")


async def test_options_is_answered_as_an_invite_would_be() -> None:
    handler = Recorder()
    async with endpoint_here(handler, max_calls=1) as endpoint:
        asker, caller = SipPeer(endpoint.port), SipPeer(endpoint.port)
        answer = await options(asker)
        assert answer.start_line == "SIP/2.0 200 OK"
        for header, token in (("allow", "INVITE"), ("accept", "application/sdp"), ("supported", "timer")):
            assert token in answer.joined(header), header
        handler.refuse = 503
        assert await told(asker) == REFUSED
        handler.refuse = 0
        await caller.invite(sdp(40000))
        assert await told(asker) == REFUSED
        cseq = asker.send("INVITE", sdp(40002))
        assert (await asker.answer(cseq)).start_line.startswith("SIP/2.0 486 ")
        asker.send("ACK", cseq=cseq)
        asker.to_tag = ""
        # Within the call it is a question about the call, which goes on.
        assert (await caller.answer(caller.send("OPTIONS"), "OPTIONS")).start_line == "SIP/2.0 200 OK"
        refused = endpoint.counters.refused.total()
        await caller.bye()
        await until_here(lambda: endpoint.calls == 0)
        assert (await told(asker))[0] == "SIP/2.0 200 OK"
        endpoint.refuse_new()
        assert await told(asker) == REFUSED
        assert endpoint.counters.refused.total() == refused, "no call was refused"
        asker.close()
        caller.close()


def readiness(running: Worker) -> tuple[int, list[str]]:
    try:
        running.get("/readyz")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["reasons"]
    return 200, []


async def test_readyz_and_options_say_the_same(tmp_path: Path) -> None:
    """Of a worker that is full, that cannot store events, and that drains."""
    with worker(tmp_path, LISTENER_PATH, **LISTENER, SIP__MAX_CALLS="1", SHUTDOWN_S="30") as running:
        asker, caller, other = (SipPeer(running.sip_port) for _ in range(3))

        async def both() -> tuple[int, list[str], int]:
            status, reasons = await asyncio.to_thread(readiness, running)
            return status, reasons, int((await options(asker)).start_line.split()[1])

        assert await both() == (200, [], 200)
        await caller.invite(sdp(40000))
        status, (reason,), answer = await both()
        assert (status, answer) == (503, 503) and "sip.max_calls" in reason
        await caller.bye()
        await asyncio.to_thread(until, lambda: readiness(running)[0] == 200)
        with closing(sqlite3.connect(running.data_dir / "events.sqlite3", isolation_level=None)) as store:
            store.execute("BEGIN IMMEDIATE")  # nobody else can write until the end of it
            await other.invite(sdp(40000))
            await other.bye()
            await asyncio.to_thread(until, lambda: readiness(running)[0] == 503)
            status, (reason,), answer = await both()
            assert (status, answer) == (503, 503) and "not being stored" in reason
            store.execute("ROLLBACK")
        await asyncio.to_thread(until, lambda: readiness(running)[0] == 200)
        assert await both() == (200, [], 200)
        last = SipPeer(running.sip_port)
        await last.invite(sdp(40000))
        running.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(until, lambda: "shutting down" in str(readiness(running)))
        assert await told(asker) == REFUSED
        await last.bye()
        for peer in (asker, caller, other, last):
            peer.close()


@pytest.mark.parametrize(("state", "preload", "refused"), [("failed", False, True), ("warming_up", True, False)])
async def test_an_engine_that_cannot_be_asked(tmp_path: Path, state: str, preload: bool, refused: bool) -> None:
    """Calls are refused when it does not start; while it still loads they should go elsewhere, and are taken."""
    made = WorkerInProcess(parse({"data_dir": str(tmp_path), "asr": {"preload": preload}}))
    made.recognizer.state = EngineStatus(state)
    assert made.sip is not None
    assert (made.sip.control.handler.can_accept(), bool(made.readiness.reasons())) == (503 if refused else 0, True)
    assert not made.sip.admission._calls.ready()
