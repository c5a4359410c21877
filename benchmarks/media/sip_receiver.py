"""Recording sessions through the SIP endpoint: `python -m benchmarks.media.sip_receiver PORT CALLS SECONDS`.

Signalling, negotiation, metadata, RTCP and the media path are the worker's; what it does not have is the HTTP side.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from benchmarks.media.harness import Figures, Harness, run
from benchmarks.media.sip_sender import CALLS_PER_S
from config import Settings
from config.settings import Rtp, Sip
from mediaworker.ingress.sip.calls import SipIngress
from sip.pjsip.endpoint import SipEndpoint

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
    dropped = _dropped({socket.port for socket in endpoint.rtp.open_sockets})
    await asyncio.sleep(calls / CALLS_PER_S + 2)  # the BYEs
    refused = sum(endpoint.counters.refused.values())
    await endpoint.stop()
    return {
        "packets": packets,
        "setup_cpu_ms_per_call": round(1000 * setup / calls, 2),
        "dropped": dropped,
        "rtcp_sent": endpoint.rtp.rtcp_sent,
        "refused": refused,
        **figures,
    }


def _dropped(ports: set[int]) -> int:
    """Datagrams to these ports that the kernel had no room for (proc(5), /proc/net/udp)."""
    rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return sum(int(row[-1]) for row in rows if int(row[1].rpartition(":")[2], 16) in ports)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    run(lambda harness: main(harness, int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
