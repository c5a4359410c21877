"""CPU time of one RTP packet of 20 ms: into the ring, and through aiortc's parser, jitter buffer and decoder."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import struct
import time

import numpy as np
from aiortc.codecs.g711 import PcmuDecoder
from aiortc.jitterbuffer import JitterBuffer
from aiortc.rtp import RtpPacket

from audio import Codec, Detector
from audio.fast_path import Datagrams
from config import Endpointing

LEGS, ROUNDS = 100, 400
HEADER = struct.Struct("!BBHII")


def main() -> None:
    detector = Detector()
    legs = [detector.open(Codec.PCMU, Endpointing(), transport="rtp") for _ in range(LEGS)]
    buffers = [(JitterBuffer(capacity=16, prefetch=4), PcmuDecoder()) for _ in range(LEGS)]
    payload = bytes(range(96, 256))
    datagrams, which, rows = Datagrams(LEGS), np.arange(LEGS), np.array([leg.index for leg in legs])
    pairs = []
    for number in range(ROUNDS):
        now = number * 0.020
        packets = [HEADER.pack(0x80, 0, number, number * 160, leg) + payload for leg in range(LEGS)]
        for index, packet in enumerate(packets):
            datagrams.store(index, packet, now)
        before = time.thread_time()
        plain = detector.receive(datagrams, which, rows)
        for index in np.flatnonzero(~plain).tolist():
            legs[index].receive_rtp(datagrams.datagram(index), now)
        between = time.thread_time()
        for (buffer, decoder), data in zip(buffers, packets, strict=True):
            parsed = RtpPacket.parse(data)
            parsed._data = parsed.payload
            _, frame = buffer.add(parsed)
            if frame is not None:
                decoder.decode(frame)
        after = time.thread_time()
        for _ in detector.step(now):
            pass
        pairs.append(((between - before) / LEGS, (after - between) / LEGS))
    pairs = pairs[20:]
    ours, usual = (1e6 * statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"ring {ours:.1f} µs, aiortc {usual:.1f} µs of CPU per packet, ratio {ratio:.1f} ({LEGS} legs, medians)")


if __name__ == "__main__":
    main()
