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

import numpy as np
import onnxruntime
from aiortc.codecs.g711 import PcmuDecoder
from aiortc.jitterbuffer import JitterBuffer, JitterFrame
from aiortc.rtp import RtpPacket
from av import AudioFrame

from audio.weights import silero_path


class Leg(asyncio.DatagramProtocol):
    def __init__(self, vad: Any) -> None:
        self._jitter = JitterBuffer(capacity=16, prefetch=4)
        self._decoder = PcmuDecoder()
        self._vad = vad
        self._samples = np.zeros(0, np.float32)
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros((1, 32), np.float32)
        self.packets = self.windows = self.voiced = 0

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
            plane = decoded.to_ndarray()[0]
            self._samples = np.concatenate([self._samples, plane.astype(np.float32) / 32768])
        while len(self._samples) >= 256:
            window, self._samples = self._samples[None, :256], self._samples[256:]
            samples = np.concatenate([self._context, window], 1)
            feed = {"input": samples, "state": self._state, "sr": np.array(8000, np.int64)}
            probability, self._state = self._vad.run(None, feed)
            self._context = window[:, -32:]
            self.windows += 1
            self.voiced += bool(probability[0, 0] > 0.5)


async def main(first: int, last: int, seconds: float) -> dict[str, float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    vad = onnxruntime.InferenceSession(str(silero_path()), options, providers=["CPUExecutionProvider"])
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
        "windows": sum(leg.windows for leg in legs),
        "voiced": sum(leg.voiced for leg in legs),
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


if __name__ == "__main__":
    import uvloop

    low, high = sys.argv[1].split("-")
    sys.stdout.write(json.dumps(uvloop.run(main(int(low), int(high), float(sys.argv[2])))))
