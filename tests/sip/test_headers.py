"""What a SIP caller's headers come to in a running worker."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.sip.headers import NAMED, TELLING
from lab.sip.sip_peer import SipPeer, sdp
from lab.worker.peers import worker

ROUTES = """[{headers = {Diversion = "*sip:200@*", "P-Charging-Vector" = "icid-value=7*"}, names = {main = "Diverted"}},
{calling = "+4930*", names = {main = "Berlin"}}]""".replace("\n", " ")


async def call(port: int, who: str, *headers: str) -> None:
    with closing(SipPeer(port)) as caller:
        cseq = caller.send("INVITE", sdp(40000), f"From: <{who}>;tag={caller.tag}", *headers)
        await caller.answer(cseq, status=200)
        caller.send("ACK", cseq=cseq)
        await caller.bye()


async def test_a_call_from_a_carrier(tmp_path: Path) -> None:
    told: dict[str, Any] = {}
    headers = str([*NAMED, "P-Charging-Vector"])
    with worker(tmp_path, LISTENER_PATH, **LISTENER, ROUTES=ROUTES, SIP__HEADERS=headers) as running:
        lines = [f"{name}: {value}" for name, value in TELLING.items()]
        for number, more in enumerate(("P-Charging-Vector: icid-value=7", "X-Ticket: 42"), 1):
            await call(running.sip_port, "sip:anonymous@anonymous.invalid", *lines, more)
            ended = await asyncio.to_thread(running.wait_ended, number, 30)
            told[more.split(":")[0]] = running.events(ended[-1]["call_id"])[0]
    diverted, plain = told["P-Charging-Vector"], told["X-Ticket"]
    assert {name: diverted["custom"][name.lower()] for name in TELLING} == TELLING
    assert diverted["custom"]["p-charging-vector"] == "icid-value=7" and plain["custom"]["x-ticket"] == "42"
    assert [each["from"] for each in (diverted, plain)] == ["+4930123456"] * 2
    assert [each["legs"][0]["name"] for each in (diverted, plain)] == ["Diverted", "Berlin"]
