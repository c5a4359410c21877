"""A SIPREC recording session (RFC 7866) as a session border controller begins it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from config.network.addresses import bracketed
from lab.patience import timeout
from lab.sip.rtp_sender import RtpSender
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Body, Step, offer, scenario
from lab.worker.peers import Worker
from sip.protocol.srtp import Crypto

SRC = ";+sip.src"
REQUIRE = ("Require: siprec",)
ROLES = {
    "SIPREC__PARTICIPANTS": '[{match = "sip:47??@*", role = "agent"}, {match = "a_leg", role = "customer"}]',
    "SIPREC__OTHERS": "customer",
}
PEOPLE = {"1": ("a", "sip:+4930123456@carrier.example", "Bea"), "2": ("b", "sip:4711@pbx.example", "Ann")}


def metadata(people: dict[str, tuple[str, str, str]] = PEOPLE, mode: str = "complete", kind: str = "+xml") -> Body:
    """label → (id, address of record, name)."""
    parts = [
        f"<participant participant_id='{one}'><nameID aor='{aor}'><name>{name}</name></nameID></participant>"
        f"<stream stream_id='s{label}' session_id='q'><label>{label}</label></stream>"
        f"<participantstreamassoc participant_id='{one}'><send>s{label}</send></participantstreamassoc>"
        for label, (one, aor, name) in people.items()
    ]
    head = "<?xml version='1.0' encoding='UTF-8'?>\n<recording xmlns='urn:ietf:params:xml:ns:recording:1'>"
    session = "<session session_id='q'><sipSessionID>ab30;remote=47</sipSessionID></session>"
    text = f"{head}<datamode>{mode}</datamode>{session}{''.join(parts)}</recording>"
    return Body(f"application/rs-metadata{kind}", text)


def line(port: int, label: str, direction: str = "sendonly", crypto: Crypto | None = None) -> str:
    named = f"a=label:{label}\n" if label else ""
    key = f"a=crypto:{crypto}\n" if crypto else ""
    return f"m=audio {port} RTP/{'SAVP' if crypto else 'AVP'} 0\na=rtpmap:0 PCMU/8000\n{named}{key}a={direction}"


def both(senders: Sequence[RtpSender], *directions: str, version: int = 1, labels: Sequence[str] = ("1", "2")) -> Body:
    lines = [
        line(sender.port, label, direction)
        for sender, label, direction in zip(senders, labels, directions or ("sendonly",) * 2, strict=True)
    ]
    return offer(*lines, version=version)


ANSWERED = ("a=label:1", "a=label:2", "a=recvonly", r"Contact: <[^>]*>;\+sip\.srs")


@asynccontextmanager
async def talking(
    sipp: Sipp, running: Worker, senders: Sequence[RtpSender], *steps: Step, host: str = "127.0.0.1",
    timeout_s: int = 60,
) -> AsyncIterator[list[int]]:  # fmt: skip
    """A session that begins with `steps[0]`; inside it the worker's ports are known. At its end all steps are done."""
    before = sipp.folder / "ports"
    text, options = scenario(*steps, contact=SRC), ("-trace_logs", "-log_file", str(before))
    task = sipp.start(text, f"{bracketed(host)}:{running.sip_port}", source=host, timeout_s=timeout_s, options=options)
    try:
        async with timeout(20):
            while not (found := re.findall(r"m=audio ([0-9]+) ", before.read_text() if before.exists() else "")):
                assert not task.done(), "it has ended"
                await asyncio.sleep(0.02)
        yield [int(port) for port in found]
        await task
    finally:
        task.cancel()
        for sender in senders:
            sender.close()


async def ended(running: Worker, before: int) -> list[dict[str, Any]]:
    calls = await asyncio.to_thread(running.wait_ended, before + 1, 60)
    return running.events(calls[-1]["call_id"])
