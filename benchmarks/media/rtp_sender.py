"""The far end of the media benchmark: RTP of many legs, 20 ms µ-law packets on an absolute schedule.

Run as its own process, so that its CPU time is not the worker's: `python -m benchmarks.media.rtp_sender PORTS SECONDS
[noise]`, ports as `first-last` (even numbers). Prints a JSON object when done.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Sequence

import numpy as np

from audio.codecs.g711 import ulaw_encode

PTIME_S = 0.020
SAMPLES = 160
BEGIN_S = 2.0
"""Calls begin one after the other within this time, or within a quarter of a short run."""
TALK_S, PAUSE_S = 4.0, 3.0
"""A turn of a phone call: somebody talks for 4 s and listens for 3."""


def speech_like(seconds: float, rate_hz: int = 8000) -> np.ndarray:
    """int16 that the VAD takes for speech: a glottal pulse train through two moving formants, syllable envelope."""
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.7 * t)
    phase = np.cumsum(pitch) / rate_hz
    voiced = np.zeros_like(t)
    for harmonic in range(1, 28):
        hertz = harmonic * pitch
        f1, f2 = 500 + 250 * np.sin(2 * np.pi * 1.3 * t), 1500 + 500 * np.sin(2 * np.pi * 0.9 * t + 1)
        gain = np.exp(-(((hertz - f1) / 120) ** 2)) + 0.6 * np.exp(-(((hertz - f2) / 180) ** 2)) + 0.02
        voiced += gain * np.sin(2 * np.pi * harmonic * phase)
    envelope = (0.55 + 0.45 * np.sin(2 * np.pi * 4 * t)) ** 2
    sound = voiced * envelope
    return np.asarray(sound / np.abs(sound).max() * 9000, np.int16)


def payloads(*, noise: bool) -> list[bytes]:
    """One turn as µ-law packets: the legs play it in a loop, each from another place. `noise`: in its pause."""
    pause = np.random.default_rng(0).integers(-24, 25, int(PAUSE_S * 8000)).astype(np.int16)
    turn = np.concatenate([speech_like(TALK_S), pause if noise else np.zeros_like(pause)])
    codes = bytes(ulaw_encode(turn))
    return [codes[i : i + SAMPLES] for i in range(0, len(codes) - SAMPLES + 1, SAMPLES)]


def beginnings(count: int, seconds: float) -> list[int]:
    """With which packet each leg begins, in a run of that length."""
    span = int(min(BEGIN_S, seconds / 4) / PTIME_S)
    return [index * span // count for index in range(count)]


def opened() -> socket.socket:
    """The socket that all legs come from."""
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    out.bind(("127.0.0.1", 0))
    return out


def stream(out: socket.socket, ports: Sequence[int], seconds: float, *, noise: bool) -> dict[str, float]:
    """A leg for each port of this machine, for so long."""
    turn = payloads(noise=noise)
    header = struct.Struct("!BBHII")
    targets = [("127.0.0.1", port) for port in ports]
    offset = [(index * 37) % len(turn) for index in range(len(targets))]
    sent = late = 0
    packets = int(seconds / PTIME_S)
    slots = [range(slot, len(targets), 20) for slot in range(20)]  # of 1 ms, as independent phones are
    begins = beginnings(len(targets), seconds)
    start = time.perf_counter() + 0.2
    for number in range(packets):
        for slot, members in enumerate(slots):
            due = start + number * PTIME_S + slot * 0.001
            delay = due - time.perf_counter()
            if delay > 0:
                time.sleep(delay)
            elif delay < -PTIME_S:
                late += 1
            for leg in members:
                if number < begins[leg]:
                    continue
                head = header.pack(0x80, 0, number & 0xFFFF, number * SAMPLES & 0xFFFFFFFF, 0x1000 + leg)
                out.sendto(head + turn[(offset[leg] + number) % len(turn)], targets[leg])
                sent += 1
    return {"sent": sent, "late_slots": late, "cpu_s": time.process_time()}


if __name__ == "__main__":
    low, high = sys.argv[1].split("-")
    legs = range(int(low), int(high) + 1, 2)
    sys.stdout.write(json.dumps(stream(opened(), legs, float(sys.argv[2]), noise=sys.argv[3:] == ["noise"])))
