"""Legs of RTP through the worker's media path: `python -m mediaworker.bench.receiver PORTS SECONDS`."""

from __future__ import annotations

import asyncio
import sys

from audio import Codec
from mediaworker.bench.harness import Harness, run
from mediaworker.call import LegSpec
from sip.ports import RtpPorts
from sip.receiver import RtpReceiver
from sip.sockets import RtpCounters, RtpSocket, SilenceTicker


async def main(harness: Harness, first: int, last: int, seconds: float) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    receiver = RtpReceiver(harness.detector)
    ports = RtpPorts(first, last + 1, host="127.0.0.1")
    counters, ticker = RtpCounters(), SilenceTicker(loop)
    for _ in range(first, last + 1, 2):
        socket = RtpSocket(ports, receiver, counters, ticker, loop)
        socket.leg = harness.calls.open(source="sip", legs=[LegSpec("main", Codec.PCMU)]).legs["main"]
    figures = await harness.measure(seconds + 1, sweep=receiver.sweep)
    return {"packets": counters.packets} | figures


if __name__ == "__main__":
    low, high = sys.argv[1].split("-")
    run(lambda harness: main(harness, int(low), int(high), float(sys.argv[2])))
