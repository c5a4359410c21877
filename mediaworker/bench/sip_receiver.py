"""Recording sessions through the SIP endpoint: `python -m mediaworker.bench.sip_receiver PORT CALLS SECONDS`.

Signalling, negotiation, metadata, RTCP and the media path are the worker's; what it does not have is the HTTP side.
"""

from __future__ import annotations

import asyncio
import resource
import sys

from config import Settings
from config.settings import Rtp, Sip
from mediaworker.bench.harness import Figures, Harness, run
from mediaworker.ingress.sip import SipIngress
from sip.endpoint import SipEndpoint

ANSWERED_S = 120.0


async def main(harness: Harness, port: int, calls: int, seconds: float) -> Figures:
    sip = Sip(host="127.0.0.1", port=port, transports=("udp",), max_calls=calls, max_invites_per_s=0)
    settings = Settings(sip=sip, rtp=Rtp(port_min=20000, port_max=31998))
    endpoint = SipEndpoint(settings, SipIngress(harness.calls), harness.detector)
    await endpoint.start()
    begun = _cpu_s()
    setup = 0.0

    async def answered() -> None:
        nonlocal setup
        async with asyncio.timeout(ANSWERED_S):
            while endpoint.counters.answered < calls:  # noqa: ASYNC110 - a counter tells nobody
                await asyncio.sleep(0.05)
        setup = _cpu_s() - begun

    figures = await harness.measure(seconds + 1, sweep=endpoint.receiver.sweep, ready=answered)
    packets = endpoint.rtp.packets
    await asyncio.sleep(calls / 25 + 2)  # the BYEs
    refused = sum(endpoint.counters.refused.values())
    await endpoint.stop()
    return {
        "packets": packets,
        "setup_cpu_ms_per_call": round(1000 * setup / calls, 2),
        "rtcp_sent": endpoint.rtp.rtcp_sent,
        "refused": refused,
        **figures,
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    run(lambda harness: main(harness, int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
