"""What is told of a SIP call, whatever happens to it: a real worker, and its store afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audio.codecs.g711 import ulaw_encode
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.events.story import check_story
from lab.media.speech import speech
from lab.patience import seconds
from lab.sip.endpoint import until
from lab.sip.rtp_sender import RtpSender
from lab.sip.scenes import longest_pause_s, media
from lab.sip.sip_peer import SipPeer, sdp
from lab.worker.peers import Worker, worker

REORDER_S = 0.06
"""A packet that is so much later than the one before may be late."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("worker"), LISTENER_PATH, **LISTENER) as started:
        yield started


@contextlib.asynccontextmanager
async def call(running: Worker, *headers: str) -> AsyncIterator[tuple[SipPeer, RtpSender, int, list[dict[str, Any]]]]:
    """A call that is up; its events are in the list when it has been left, and it has ended."""
    known = {record["call_id"] for record in running.calls()}
    caller, sender, events = SipPeer(running.sip_port), RtpSender(), []
    port, _ = media(await caller.invite(sdp(sender.port), *headers))
    try:
        yield caller, sender, port, events
        ended = await asyncio.to_thread(running.wait_ended, len(known) + 1, 30)
        (new,) = (record for record in ended if record["call_id"] not in known)
        events += running.events(new["call_id"])
        check_story(events)
        assert events[0]["external_id"] == caller.call_id
    finally:
        caller.close()
        sender.close()


def request(running: Worker, method: str, path: str) -> int:
    asked = urllib.request.Request(running.url + path, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=seconds(10)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_hold_is_told(running: Worker) -> None:
    """Each once, whatever the hold is called and however often it is repeated; `recvonly` is none."""
    async with call(running) as (caller, sender, port, events):
        for version, line in enumerate(("sendonly", "inactive", "sendrecv", "recvonly", "inactive", "sendrecv"), 2):
            await caller.invite(sdp(sender.port, f"a={line}", version=version))
            await sender.talk(b"\xff" * 800, port)
        await caller.bye()
    told = [event["type"] for event in events if event["type"] in ("call.held", "call.resumed")]
    assert told == ["call.held", "call.resumed", "call.held", "call.resumed"]
    (metrics,) = (event for event in events if event["type"] == "metrics")
    assert metrics["hold_ms"] > 0


async def test_a_transfer_loses_nothing(running: Worker) -> None:
    """Another port, another SSRC, in the middle of a sentence: one utterance, and every packet of it until the BYE.

    Once more when this process stood still, for what it sends afterwards is late whatever a transfer does.
    """
    codes = bytes(ulaw_encode(np.concatenate([speech("vm-goodbye"), np.zeros(8000, np.int16)])))
    half = len(codes) // 320 * 160
    packets = -(-half // 160) + -(-(len(codes) - half) // 160)
    for _ in range(10):
        async with call(running) as (caller, sender, port, events):
            pauses_s = [await longest_pause_s(sender.talk(codes[:half], port))]
            second = RtpSender()
            moved, _ = media(await caller.invite(sdp(second.port, version=2)))
            assert moved == port
            pauses_s.append(await longest_pause_s(second.talk(codes[half:], port)))
            second.close()
            await caller.bye()
        if max(pauses_s) < REORDER_S / 2:
            break
    (leg,) = events[-1]["legs"]
    assert (leg["packets"], leg["lost"], leg["late"]) == (packets, 0, 0)
    assert [event["lost_ms"] for event in events if event["type"] == "transcript.final"] == [0]


async def test_headers_and_digits(running: Worker) -> None:
    headers = ("X-Ticket: 42", "X-Queue: sales, second line", "P-Asserted-Identity: <sip:5@pbx.example>")
    async with call(running, *headers) as (caller, sender, port, events):
        five = "Signal=5\r\nDuration=160\r\n", "Content-Type: application/dtmf-relay"
        relay = caller.send("INFO", *five, branch="five")
        await caller.answer(relay, "INFO")
        caller.send("INFO", *five, branch="five", cseq=relay)  # once more, as when the answer was lost
        plain = caller.send("INFO", "#", "Content-Type: application/dtmf")
        flash = caller.send("INFO", "Signal=16\r\nDuration=300\r\n", five[1])
        star = caller.send("INFO", "Signal=10\r\n", five[1])
        for each in (plain, flash, star):
            assert (await caller.answer(each, "INFO")).start_line == "SIP/2.0 200 OK"
        await sender.talk(b"\xff" * 320, port)
        for event, lost in ((7, 0), (10, 2), (11, 1)):
            await sender.press(event, port, lost=lost)
            await sender.talk(b"\xff" * 320, port)
        await caller.bye()
    told = {"x-ticket": "42", "x-queue": "sales, second line", "p-asserted-identity": "<sip:5@pbx.example>"}
    assert events[0]["custom"] == told
    digits = [(event["leg"], event["digit"], event["duration_ms"]) for event in events if event["type"] == "dtmf"]
    assert digits == [
        ("main", "5", 160), ("main", "#", 0), ("main", "*", 0), ("main", "7", 100), ("main", "*", 100),
        ("main", "#", 100),
    ]  # fmt: skip


async def test_a_hang_up_by_the_api(running: Worker) -> None:
    """The peer gets its BYE, and what may be asked of a call that has ended is known."""
    async with call(running) as (caller, sender, port, events):
        await sender.talk(b"\xff" * 800, port)
        (call_id,) = (record["call_id"] for record in running.calls() if not record["ended_at"])
        assert await asyncio.to_thread(request, running, "DELETE", f"/v1/calls/{call_id}") == 409
        assert await asyncio.to_thread(request, running, "POST", f"/v1/calls/{call_id}/hangup") == 202
        caller.reply(await caller.request("BYE"), "200 OK")
    assert events[-1]["reason"] == "api"
    assert await asyncio.to_thread(request, running, "POST", f"/v1/calls/{call_id}/hangup") == 409
    assert await asyncio.to_thread(request, running, "DELETE", f"/v1/calls/{call_id}") == 204
    assert await asyncio.to_thread(request, running, "GET", f"/v1/calls/{call_id}") == 404


async def test_nothing_is_told_of_who_only_rings(tmp_path: Path) -> None:
    """One cancels, one is told to go elsewhere when the worker ends."""
    with worker(tmp_path, LISTENER_PATH, **LISTENER, SIP__ANSWER_DELAY_S="20") as running:
        callers = [SipPeer(running.sip_port) for _ in range(3)]
        cancels, answered, drained = callers
        cseq = cancels.send("INVITE", sdp(40000), branch="one")
        await cancels.answer(cseq, status=180)
        cancels.send("CANCEL", cseq=cseq, branch="one", within=False)
        assert (await cancels.answer(cseq)).start_line.startswith("SIP/2.0 487 ")
        cancels.send("ACK", cseq=cseq, branch="one")
        # A recording client does not wait.
        await answered.invite(sdp(40002, "a=sendonly", "a=label:1"), "Require: siprec")
        await until(lambda: running.metric("mediaworker_calls_active") == 1)
        assert running.metric("mediaworker_sip_cancelled_total") == 1
        cseq = drained.send("INVITE", sdp(40004), branch="one")
        await drained.answer(cseq, status=180)
        running.process.send_signal(signal.SIGTERM)
        assert (await drained.answer(cseq)).start_line.startswith("SIP/2.0 503 ")
        drained.send("ACK", cseq=cseq, branch="one")
        await answered.bye()
        assert await asyncio.to_thread(running.process.wait, seconds(30)) == 0
        for caller in callers:
            caller.close()
    (only,) = stored(running)
    assert only["external_id"] == answered.call_id


def stored(running: Worker) -> list[dict[str, Any]]:
    """`call.started` of every call in the store of a worker that has ended."""
    with contextlib.closing(sqlite3.connect(running.data_dir / "events.sqlite3")) as store:
        rows = [json.loads(row[0]) for row in store.execute("SELECT json FROM events ORDER BY id")]
    return [event for event in rows if event["type"] == "call.started"]
