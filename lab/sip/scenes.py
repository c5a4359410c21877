"""Calls to an endpoint with PJSIP's timers shortened."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

from lab.sip.endpoint import Recorder, worker
from lab.sip.sip_peer import SipPeer
from sip.pjsip import native
from sip.pjsip.endpoint import SipEndpoint
from sip.protocol.message import SipMessage

STARTED = ("call", "PCMU", "sendrecv")


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """T1 is 50 ms, so that 64*T1 is 3.2 s (RFC 3261 section 17)."""
    native.library.pjsip_tsx_set_timers(50, 400, 500, 3200)
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


def media(message: SipMessage) -> tuple[int, str]:
    """Port and direction of the first stream."""
    lines = message.body.splitlines()
    port = next(line.split()[1] for line in lines if line.startswith("m=audio"))
    return int(port), next(line[2:] for line in lines if line[2:] in ("sendrecv", "sendonly", "recvonly", "inactive"))
