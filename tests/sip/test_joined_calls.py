"""Two SIP calls of one conversation on a real worker: one call with a leg for each, and nobody else in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from audio.codecs.g711 import ulaw_encode
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.events.story import check_story
from lab.media.speech import speech
from lab.sip.endpoint import until
from lab.sip.rtp_sender import SAMPLES, RtpSender
from lab.sip.scenes import media
from lab.sip.sip_peer import SipPeer, sdp
from lab.worker.peers import Worker, worker

CUSTOMER, AGENT = "ab30317f1a784dc48ff824d0d3715d86", "47755a9de7794ba387653f2099600ef2"
NIL = "0" * 32
ROUTES = '[{join = "Session-ID", roles = {main = "customer", main-2 = "agent"}}]'
PAUSE = np.zeros(8000, np.int16)
VOICES = [bytes(ulaw_encode(np.concatenate([speech(name), PAUSE]))) for name in ("auth-thankyou", "vm-goodbye")]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("joined")
    with worker(folder, LISTENER_PATH, **LISTENER, ROUTES=ROUTES, SIP__ALLOW='["127.0.0.2"]') as started:
        yield started


class Side:
    """One side of a conversation: a SIP call and its audio."""

    def __init__(self, running: Worker, host: str = "127.0.0.1") -> None:
        self.caller, self.sender = SipPeer(running.sip_port, host=host), RtpSender(host)
        self.port = 0

    async def invite(self, session: str) -> None:
        offer = sdp(self.sender.port, address=self.caller.contact.split("@")[1].split(":")[0])
        self.port, _ = media(await self.caller.invite(offer, f"Session-ID: {session}"))

    async def talk(self, codes: bytes) -> None:
        await self.sender.talk(codes, self.port)


@asynccontextmanager
async def sides(running: Worker, *hosts: str) -> AsyncIterator[list[Side]]:
    made = [Side(running, host) for host in hosts]
    try:
        yield made
    finally:
        for side in made:
            side.caller.close()
            side.sender.close()


def legs(running: Worker) -> list[list[str]]:
    """Of the calls that are open, oldest first."""
    calls = sorted(running.calls(), key=lambda call: call["call_id"])
    return [[leg["leg"] for leg in call["legs"]] for call in calls if not call["ended_at"]]


async def ended(running: Worker, call_id: str) -> list[dict[str, Any]]:
    await until(lambda: running.get(f"/v1/calls/{call_id}")["ended_at"])
    return running.events(call_id)


async def test_two_voices_are_one_call(running: Worker) -> None:
    async with sides(running, "127.0.0.1", "127.0.0.1", "127.0.0.2") as (customer, agent, stranger):
        await customer.invite(f"{CUSTOMER};remote={NIL}")
        await agent.invite(f"{AGENT};remote={CUSTOMER}")
        await until(lambda: legs(running) == [["main", "main-2"]])
        await stranger.invite(f"{AGENT};remote={CUSTOMER}")
        await until(lambda: legs(running) == [["main", "main-2"], ["main"]])
        call_id = min(call["call_id"] for call in running.calls() if not call["ended_at"])
        await asyncio.gather(customer.talk(VOICES[0]), agent.talk(VOICES[1]))
        await customer.caller.bye()
        await stranger.caller.bye()
        await agent.talk(VOICES[1])
        await until(lambda: legs(running) == [["main", "main-2"]])
        await agent.caller.bye()
        events = await ended(running, call_id)
    finals = check_story(events)
    assert {(final["leg"], final["role"]) for final in finals} == {("main", "customer"), ("main-2", "agent")}
    said = [" ".join(final["text"] for final in finals if final["leg"] == leg) for leg in ("main", "main-2")]
    assert all(said) and said[0] != said[1]
    (joined,) = (event for event in events if event["type"] == "leg.updated")
    assert (joined["leg"], joined["role"], joined["codec"]) == ("main-2", "agent", "PCMU")
    (left,) = (event for event in events if event["type"] == "call.held")
    assert (left["leg"], left["left"]) == ("main", True)
    assert events[0]["external_id"] == customer.caller.call_id
    sent = {"main": -(-len(VOICES[0]) // SAMPLES), "main-2": 2 * -(-len(VOICES[1]) // SAMPLES)}
    assert {leg["leg"]: leg["packets"] for leg in events[-1]["legs"]} == sent
    assert events[-1]["reason"] == "hangup" and not any(leg["lost"] for leg in events[-1]["legs"])
    assert max(final["at_ms"] for final in finals if final["leg"] == "main-2") > left["at_ms"]
    spoken = await asyncio.to_thread(running.get, f"/v1/calls/{call_id}/transcript?format=txt")
    assert all(final["text"] in spoken for final in finals)


async def test_a_hang_up_by_the_api_ends_both(running: Worker) -> None:
    async with sides(running, "127.0.0.1", "127.0.0.1") as made:
        for side in made:
            await side.invite(f"{CUSTOMER};remote={AGENT}")
        await until(lambda: legs(running) == [["main", "main-2"]])
        (call_id,) = (call["call_id"] for call in running.calls() if not call["ended_at"])
        await asyncio.to_thread(running.hang_up, call_id)
        for side in made:
            side.caller.reply(await side.caller.request("BYE"), "200 OK")
        events = await ended(running, call_id)
    check_story(events)
    assert events[-1]["reason"] == "api" and not legs(running)


async def test_who_comes_after_the_end_begins_another_call(running: Worker) -> None:
    before = {call["call_id"] for call in running.calls()}
    async with sides(running, "127.0.0.1", "127.0.0.1") as made:
        for side in made:
            await side.invite(f"{CUSTOMER};remote={AGENT}")
            await side.talk(b"\xff" * 800)
            await side.caller.bye()
            await until(lambda: not legs(running))
    new = sorted(call["call_id"] for call in running.calls() if call["call_id"] not in before)
    assert [running.events(call_id)[0]["external_id"] for call_id in new] == [side.caller.call_id for side in made]
