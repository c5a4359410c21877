"""Call flows as Cisco's documents draw them, sent by SIPp: neither CUCM nor CUBE can be run here.

CUCM is a back-to-back user agent that makes no offer of its own while it looks for media: a hold is `inactive` and then
a re-INVITE without SDP, whose 200 offers to the music on hold; resume, transfer and conference are such re-INVITEs too,
each for where the audio is then. CUBE offers at once, passes re-INVITEs on, and refreshes the session by one that
changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from audio.codecs.g711 import alaw_encode, ulaw_decode
from lab.events.story import check_story
from lab.patience import timeout
from lab.sip.rtp_sender import RtpSender
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Body, Expect, Pause, Send, offer, scenario
from lab.worker.peers import Worker, worker
from lab.worker.qwen import QWEN, SAID, file

DIGITS = "a=rtpmap:101 telephone-event/8000\na=fmtp:101 0-15"
MUSIC = 30_000
"""The port of a server of music on hold; it stays silent here, so that every word is the caller's."""
CISCO = (
    "Supported: timer,resource-priority,replaces", "Min-SE: 1800", "Allow-Events: presence,kpml",
    "Cisco-Guid: 0802710458-1959465449-2686421522-1015028268",
    "Session-ID: a62dd6d8be0059c38d142bae9b46880b;remote=00000000000000000000000000000000",
    'Remote-Party-ID: "Bea" <sip:911@192.0.2.1>;party=calling;screen=yes;privacy=off',
)  # fmt: skip
REFRESHED = (*CISCO, "Session-Expires: 1800;refresher=uac")


def described(port: int, version: int, direction: str = "", codec: str = "0 101", address: str = "[media_ip]") -> Body:
    rtpmaps = [f"a=rtpmap:{each}" for each in ("0 PCMU/8000", "8 PCMA/8000") if each[0] in codec.split()]
    lines = [
        f"m=audio {port} RTP/AVP {codec}",
        *rtpmaps,
        DIGITS,
        "a=ptime:20",
        *([f"a={direction}"] if direction else []),
    ]
    return offer("\n".join(lines), address=address, version=version)


def reinvite(body: Body, *has: str) -> Send:
    return Send("INVITE", body, CISCO, has=has)


def refreshed(body: Body) -> Send:
    return Send("INVITE", body, REFRESHED, has=("Session-Expires: 1800", "a=sendrecv"))


def delayed(answer: Body) -> Send:
    """The 200 offers what was agreed, in both directions, and the ACK says what becomes of it."""
    return Send("INVITE", None, CISCO, has=("m=audio [1-9]",), lacks=("a=inactive", "a=recvonly"), ack=answer)


@dataclass(frozen=True)
class Flow:
    """A call whose audio comes from one port, then is away, then comes from the same or another one."""

    begin: Send
    away: Sequence[Send]
    back: Sequence[Send]
    moved: bool = False
    """To the second port."""
    held: bool = True
    codec: str = "PCMU"
    """Of the audio that comes back."""


def flows(first: int, second: int) -> dict[str, Flow]:
    """`first` and `second`: the ports of the audio."""
    late = Send("INVITE", None, CISCO, has=("m=audio [1-9]",), ack=described(first, 1))
    early = Send("INVITE", described(first, 1), REFRESHED, has=("Session-Expires: 1800",))
    inactive = reinvite(described(first, 2, "inactive"), "a=inactive")
    sendonly = reinvite(described(first, 2, "sendonly"), "a=recvonly")
    music = delayed(described(MUSIC, 3, "sendonly"))
    stopped = reinvite(described(MUSIC, 4, "inactive"), "a=inactive")
    a_law = described(second, 5, codec="8 101")
    connected = Send("UPDATE", None, CISCO)
    refresh = refreshed(described(first, 1))
    return {
        "cucm hold with music, and resume": Flow(late, [inactive, music], [stopped, delayed(described(first, 5))]),
        "cucm transfer": Flow(late, [inactive, music], [stopped, delayed(a_law)], moved=True, codec="PCMA"),
        "cucm conference": Flow(
            late, [inactive, music], [stopped, delayed(described(second, 5)), connected], moved=True
        ),
        "cucm transfer without music": Flow(late, [inactive], [delayed(described(second, 3))], moved=True),
        "cube hold and resume": Flow(early, [sendonly], [refreshed(described(first, 3, "sendrecv"))]),
        "cube hold by the null address": Flow(
            early, [reinvite(described(first, 2, address="0.0.0.0"))], [refreshed(described(first, 3))]
        ),
        "cube music on hold": Flow(
            early, [reinvite(described(MUSIC, 2, "sendonly"), "a=recvonly")], [refreshed(described(first, 3))]
        ),
        "cube music by delayed offer": Flow(early, [inactive, music], [delayed(described(first, 4))]),
        "cube transfer": Flow(
            early, [inactive], [refreshed(described(second, 3, codec="8 101"))], moved=True, codec="PCMA"
        ),
        "cube transfer by delayed offer": Flow(early, [], [delayed(a_law)], moved=True, held=False, codec="PCMA"),
        "cube conference": Flow(early, [refresh], [refreshed(described(second, 2))], moved=True, held=False),
        "cube session refresh": Flow(early, [refresh, refresh], [refresh], held=False),
    }


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    # What is said on both sides of a hold happens to be the number of a card.
    with worker(tmp_path_factory.mktemp("worker"), **QWEN, ASR__PRELOAD="true", PRIVACY__CARDS="false") as started:
        yield started


@pytest.mark.parametrize("transport", ["u1", "t1"])
async def test_no_word_is_lost(listening: Worker, tmp_path: Path, transport: str) -> None:
    """All of them at once: what is said before and after is read word for word, and what is between is told once."""
    senders = {name: (RtpSender(), RtpSender()) for name in flows(0, 0)}
    running = []
    for name, pair in senders.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        running.append(
            story(listening, Sipp(folder), name, flows(*(each.port for each in pair))[name], pair, transport)
        )
    try:
        found = dict(zip(senders, await asyncio.gather(*running), strict=True))
    finally:
        for pair in senders.values():
            for each in pair:
                each.close()
    expected = {
        name: ([*SAID["customer"], *SAID["agent"]], ["call.held", "call.resumed"] * flow.held, flow.codec, "api", 0)
        for name, flow in flows(0, 0).items()
    }
    assert found == expected


async def story(
    listening: Worker, sipp: Sipp, name: str, flow: Flow, senders: tuple[RtpSender, RtpSender], transport: str
) -> tuple[list[str], list[str], str, str, int]:
    """Texts, holds, the last codec, the reason of the end, and packets lost, of a call."""
    log, header = sipp.folder / "log", f"X-Flow: {name} {transport}"
    begin = replace(flow.begin, headers=(*flow.begin.headers, header), keep={"begun": "m=audio [0-9]+"})
    *others, last = (step for step in flow.back if step.method == "INVITE")
    back = [*others, replace(last, keep={"back": "m=audio [0-9]+"}), *flow.back[len(others) + 1 :]]
    text = scenario(begin, Pause(10_000), *flow.away, Pause(500), *back, Expect("BYE"))
    options = ("-trace_logs", "-log_file", str(log))
    target = f"127.0.0.1:{listening.sip_port}"
    call = sipp.start(text, target, transport=transport, timeout_s=60, options=options)
    try:
        before, after = (file(each).read_bytes() for each in ("customer", "agent"))
        port = int((await logged(call, log, "begun")).split()[-1])
        record = await seen(listening, header, lambda each: True)
        await senders[0].talk(before, port)
        await logged(call, log, "back")
        await seen(listening, header, lambda each: each["state"] == "live" and each["legs"][0]["codec"] == flow.codec)
        coded = alaw_encode(ulaw_decode(after)) if flow.codec == "PCMA" else after
        await senders[flow.moved].talk(coded, port, 8 if flow.codec == "PCMA" else 0)
        await asyncio.to_thread(listening.hang_up, record["call_id"])
        await call
    finally:
        call.cancel()
    await seen(listening, header, lambda each: each["ended_at"])
    events = listening.events(record["call_id"])
    finals, ended = check_story(events), events[-1]
    holds = [event["type"] for event in events if event["type"] in ("call.held", "call.resumed")]
    codecs = [event["codec"] for event in events if event["type"] == "leg.updated"]
    return [each["text"] for each in finals], holds, (codecs or ["PCMU"])[-1], ended["reason"], ended["legs"][0]["lost"]


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


async def logged(call: asyncio.Task[None], log: Path, name: str) -> str:
    """The line that SIPp has written about that step."""
    async with timeout(40):
        while True:
            if found := [line for line in lines(log) if f"{name}=" in line]:
                return found[-1]
            if call.done():
                call.result()
            await asyncio.sleep(0.05)


async def seen(listening: Worker, header: str, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The record of the call with this header, when it is so."""
    async with timeout(40):
        while True:
            for record in await asyncio.to_thread(listening.calls):
                if record["custom"].get("x-flow") == header.partition(": ")[2] and holds(record):
                    return record
            await asyncio.sleep(0.05)
