"""Calls to an endpoint with PJSIP's timers shortened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator

from lab.patience import factor
from lab.sip.endpoint import Recorder, worker
from lab.sip.sip_peer import SipPeer
from sip.pjsip import native
from sip.pjsip.endpoint import SipEndpoint
from sip.protocol.message import SipMessage

STARTED = ("call", "PCMU", "sendrecv")


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """T1 is 50 ms on a quiet machine, so that 64*T1 is 3.2 s (RFC 3261 section 17), and never as long as `RINGS_S`."""
    times = min(factor(), 8)
    native.library.pjsip_tsx_set_timers(*(round(times * timer) for timer in (50, 400, 500, 3200)))
    try:
        yield
    finally:
        native.library.pjsip_tsx_set_timers(500, 4000, 5000, 32000)


@contextlib.asynccontextmanager
async def scene(peers: int = 1, **sip: object) -> AsyncIterator[tuple[Recorder, SipEndpoint, list[SipPeer]]]:
    handler = Recorder()
    with quick():
        async with worker(handler, **sip) as endpoint:
            callers = [SipPeer(endpoint.port) for _ in range(peers)]
            try:
                yield handler, endpoint, callers
            finally:
                for caller in callers:
                    caller.close()


RINGS_S = 30
"""`sip.answer_delay_s` of calls that ring until they are picked up."""


def pick_up(endpoint: SipEndpoint) -> None:
    """The time to answer has come for all that ring."""
    for call, answer in tuple(endpoint.control.ringing.items()):
        answer.cancel()
        endpoint.control._answer(call)


async def longest_pause_s(work: Awaitable[None]) -> float:
    """For how long this process stood still at most while that was done, which is silence to who listens to it."""
    loop, longest_s = asyncio.get_running_loop(), 0.0

    async def watch() -> None:
        nonlocal longest_s
        last_s = loop.time()
        while True:
            await asyncio.sleep(0.01)
            last_s, longest_s = loop.time(), max(longest_s, loop.time() - last_s)

    watching = asyncio.create_task(watch())
    try:
        await work
    finally:
        watching.cancel()
    return longest_s


def media(message: SipMessage) -> tuple[int, str]:
    """Port and direction of the first stream."""
    lines = message.body.splitlines()
    port = next(line.split()[1] for line in lines if line.startswith("m=audio"))
    return int(port), next(line[2:] for line in lines if line[2:] in ("sendrecv", "sendonly", "recvonly", "inactive"))
