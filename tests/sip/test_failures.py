"""Errors of the worker's own code while PJSIP waits for it: what PJSIP asked is refused, counted, and logged rarely."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from structlog.testing import capture_logs

from config.load import parse
from config.log.rate_limit import LogRateLimit
from lab.network.ports import free_port
from lab.sip.endpoint import Recorder, until, worker
from lab.sip.scenes import quick
from lab.sip.sip_peer import SipPeer, sdp
from sip.admission.admission import FAILURES_BURST, Admission
from sip.admission.request_filter import RequestFilter
from sip.pjsip import callbacks, native
from sip.pjsip.call import SipCall
from sip.pjsip.endpoint import SipEndpoint
from sip.pjsip.resolver import Resolver
from sip.protocol.errors import SipError


class Broken(Exception):
    """A bug."""


def broken(*_: object, **__: object) -> Any:
    raise Broken


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Errors in callbacks are expected, from none on, and none of them has been logged."""
    monkeypatch.setattr(callbacks, "callback_errors", 0)
    monkeypatch.setattr(callbacks, "_failed", LogRateLimit())
    yield


async def test_what_cannot_be_judged_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        with closing(SipPeer(endpoint.port)) as caller, closing(SipPeer(endpoint.port)) as other:
            await caller.invite(sdp(40000))
            await caller.answer(caller.send("OPTIONS"), "OPTIONS")
            with monkeypatch.context() as patch, capture_logs() as logs:
                patch.setattr(RequestFilter, "check", broken)
                sent = [other.send(method, within=False) for method in ("ACK", "OPTIONS", "MESSAGE") * 20]
                sent += [other.send("INVITE", sdp(40002), within=False)]
                await until(lambda: endpoint.admission.counters.errors == len(sent))
            await other.answer(other.send("OPTIONS", within=False), "OPTIONS")
            statuses = [message.start_line.split()[1] for message in other.heard]
            assert statuses[-1] == "200" and set(statuses[:-1]) == {"500"} and len(statuses) <= FAILURES_BURST + 1
            assert [entry["event"] for entry in logs] == ["a SIP request could not be judged and was refused"]
            assert len(handler.calls) == 1 and endpoint.dialogs == 1
            await caller.bye()


async def test_an_answer_that_cannot_be_made_lets_nothing_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async with worker(Recorder()) as endpoint:
        with closing(SipPeer(endpoint.port)) as caller:
            with monkeypatch.context() as patch:
                patch.setattr(native, "answer", broken)
                caller.send("INVITE", sdp(40000, formats="18"))  # 488, with a header
                await until(lambda: endpoint.admission.counters.errors == 1)
            await caller.answer(caller.send("OPTIONS"), "OPTIONS")
            assert len(caller.heard) == 1


async def test_what_fails_altogether_lets_nothing_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface to C is made so that a callback which ends in an exception refuses what it was asked for."""
    seen: list[Any] = []
    handler = Recorder()
    async with worker(handler) as endpoint:
        with closing(SipPeer(endpoint.port)) as caller:
            with monkeypatch.context() as patch:
                patch.setattr(sys, "unraisablehook", seen.append)
                patch.setattr(RequestFilter, "check", broken)
                patch.setattr(Admission, "on_error", broken)
                caller.send("INVITE", sdp(40000), within=False)
                await until(lambda: bool(seen))
            await caller.answer(caller.send("OPTIONS", within=False), "OPTIONS")
            assert len(seen) == 1 and seen[0].exc_type is Broken
            assert len(caller.heard) == 1 and not handler.calls and endpoint.dialogs == 0


async def test_an_invite_that_we_fail_at_is_refused(errors: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async with worker(Recorder()) as endpoint:
        with closing(SipPeer(endpoint.port)) as caller, monkeypatch.context() as patch:
            patch.setattr(SipCall, "attach", broken)
            branch = "refused"
            cseq = caller.send("INVITE", sdp(40000), branch=branch)
            assert (await caller.answer(cseq)).start_line.startswith("SIP/2.0 500 ")
            caller.send("ACK", cseq=cseq, branch=branch)
            assert callbacks.callback_errors == 1 and endpoint.counters.refused[500] == 1
            callbacks.callback_errors = 0


async def test_a_new_offer_that_we_fail_at_is_refused_and_the_call_goes_on(
    errors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        with closing(SipPeer(endpoint.port)) as caller:
            await caller.invite(sdp(40000))
            with monkeypatch.context() as patch, capture_logs() as logs:
                patch.setattr(SipCall, "check", broken)
                for branch in ("one", "two"):
                    cseq = caller.send("INVITE", sdp(40000, "a=sendonly", version=2), branch=branch)
                    status = int((await caller.answer(cseq)).start_line.split()[1])
                    assert status >= 400
                    caller.send("ACK", cseq=cseq, branch=branch)
            assert callbacks.callback_errors == 2 and len(logs) == 1, "the second is counted alone"
            assert endpoint.calls == 1 and handler.log == [("call", "PCMU", "sendrecv")]
            await caller.bye()
            callbacks.callback_errors = 0


async def test_a_name_that_we_fail_to_look_up_is_not_waited_for(errors: None, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Recorder()
    async with worker(handler) as endpoint:
        with quick(), closing(SipPeer(endpoint.port)) as caller, monkeypatch.context() as patch:
            patch.setattr(Resolver, "_look_up", broken)
            caller.contact = f"<sip:4711@name.example:{caller.port}>"
            await caller.invite(sdp(40000))
            handler.calls[0].hangup()
            await until(lambda: callbacks.callback_errors >= 1)
            await until(lambda: endpoint.calls == 0)
            callbacks.callback_errors = 0


async def test_without_a_filter_there_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    settings = parse({"sip": {"host": "127.0.0.1", "port": free_port()}})
    with pytest.raises(SipError, match=r"this is PJSIP 2\.17 with interface \d.*build_pjsip\.sh"):
        await SipEndpoint(settings, Recorder()).start()
    monkeypatch.undo()
    endpoint = SipEndpoint(settings, Recorder())
    await endpoint.start()
    await endpoint.stop()
