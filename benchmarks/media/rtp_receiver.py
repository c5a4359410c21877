"""Legs of RTP through the worker's media path: `python -m benchmarks.media.rtp_receiver PORTS SECONDS [silence]`.

With `silence` it is sent back on every leg, as the SIP endpoint does by default (`sip.send_audio`).
"""

from __future__ import annotations

import asyncio
import sys

from audio import Codec
from audio.rtp.silence_ticker import SilenceTicker
from benchmarks.media.harness import Figures, Harness, run
from mediaworker.calls.call_leg import LegSpec
from sip.media.ports import RtpPorts
from sip.media.receiver import RtpReceiver
from sip.media.rtp_socket import RtpCounters, RtpSocket

DISCARD = 9
"""RFC 863: nobody listens, and a packet costs the sender the same."""


async def main(harness: Harness, first: int, last: int, seconds: float, *, silence: bool) -> Figures:
    loop = asyncio.get_running_loop()
    receiver = RtpReceiver(harness.detector)
    ports = RtpPorts(first, last + 1, host="127.0.0.1")
    counters, ticker = RtpCounters(), SilenceTicker(loop)
    for _ in range(first, last + 1, 2):
        socket = RtpSocket(ports, receiver, counters, ticker, loop)
        socket.expect(("127.0.0.1", DISCARD) if silence else None, Codec.PCMU, 0, silence=silence)
        socket.leg = harness.calls.open(source="sip", legs=[LegSpec("main", Codec.PCMU)]).legs["main"]
    figures = await harness.measure(seconds + 1, sweep=receiver.sweep)
    return {"packets": counters.packets, "silence_sent": counters.sent, **figures}


if __name__ == "__main__":
    low, high = sys.argv[1].split("-")
    back = sys.argv[3:] == ["silence"]
    run(lambda harness: main(harness, int(low), int(high), float(sys.argv[2]), silence=back))
