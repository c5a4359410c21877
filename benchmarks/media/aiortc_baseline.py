"""The usual design, for comparison: an aiortc receiver and one ONNX call per leg and window.

aiortc's own packet parser, jitter buffer and µ-law decoder on an asyncio datagram protocol per leg, then Silero's
published ONNX model, run for each leg by itself on one thread. Run as its own process.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from typing import Any

from aiortc.codecs.g711 import PcmuDecoder
from aiortc.jitterbuffer import JitterBuffer, JitterFrame
from aiortc.rtp import RtpPacket
from av import AudioFrame

from benchmarks.media.onnx_vad import OnnxVad, session


class Leg(asyncio.DatagramProtocol):
    def __init__(self, vad: Any) -> None:
        self._jitter = JitterBuffer(capacity=16, prefetch=4)
        self._decoder = PcmuDecoder()
        self._vad = OnnxVad(vad)
        self.packets = 0

    def datagram_received(self, data: bytes, addr: Any) -> None:
        packet = RtpPacket.parse(data)
        packet._data = packet.payload  # type: ignore[attr-defined]
        self.packets += 1
        _, frame = self._jitter.add(packet)
        if frame is None:
            return
        assert isinstance(frame, JitterFrame)
        for decoded in self._decoder.decode(frame):
            assert isinstance(decoded, AudioFrame)
            self._vad.receive(decoded.to_ndarray()[0])


async def main(first: int, last: int, seconds: float) -> dict[str, float]:
    vad = session()
    loop = asyncio.get_running_loop()
    legs: list[Leg] = []
    for port in range(first, last + 1, 2):
        _, leg = await loop.create_datagram_endpoint(lambda: Leg(vad), ("127.0.0.1", port))
        legs.append(leg)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(seconds + 1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "packets": sum(leg.packets for leg in legs),
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


if __name__ == "__main__":
    import uvloop

    low, high = sys.argv[1].split("-")
    sys.stdout.write(json.dumps(uvloop.run(main(int(low), int(high), float(sys.argv[2])))))
