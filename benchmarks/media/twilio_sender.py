"""Twilio of the Twilio benchmark: streams of two tracks, 20 ms messages on an absolute schedule.

`python -m benchmarks.media.twilio_sender PORT STREAMS SECONDS [noise] [one-track]` prints a JSON object when done.
"""

from __future__ import annotations

import base64
import json
import secrets
import socket
import struct
import sys
import time
from collections.abc import Sequence

from benchmarks.media.rtp_sender import PTIME_S, beginnings, payloads

_HANDSHAKE = (
    "GET /twilio/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
TRACKS = ("inbound", "outbound")


def frame(text: bytes) -> bytes:
    """One masked text frame (RFC 6455 section 5.2) of 126 to 65,535 bytes; a mask of zeros costs the sender nothing."""
    assert 126 <= len(text) < 65536
    return struct.pack("!BBHI", 0x81, 0xFE, len(text), 0) + text


def connect(port: int, index: int, tracks: Sequence[str]) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", port))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    stream.sendall(_HANDSHAKE.format(port=port, key=key).encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += stream.recv(4096)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    start = {
        "event": "start", "sequenceNumber": "1", "streamSid": f"MZ{index:032d}",
        "start": {
            "accountSid": "AC" + "0" * 32, "callSid": f"CA{index:032d}", "tracks": list(tracks), "customParameters": {},
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        },
    }  # fmt: skip
    stream.sendall(frame(json.dumps(start).encode()))
    stream.setblocking(False)
    return stream


def main(port: int, count: int, seconds: float, *, noise: bool, tracks: Sequence[str] = TRACKS) -> dict[str, float]:
    turn = [base64.b64encode(payload).decode() for payload in payloads(noise=noise)]
    streams = [connect(port, index, tracks) for index in range(count)]
    sent = late = blocked = 0
    messages = int(seconds / PTIME_S)
    # Each stream has its own moment within the 20 ms, at which Twilio sends both tracks.
    order = sorted(range(count), key=lambda each: each * 7919 % count)
    slots = [order[slot::20] for slot in range(20)]
    offsets = [index * 37 % len(turn) for index in range(2 * count)]
    ends = [f'"}},"streamSid":"MZ{index:032d}"}}' for index in range(count)]
    begins = beginnings(count, seconds)
    start = time.perf_counter() + 1.0
    for number in range(messages):
        for slot, members in enumerate(slots):
            delay = start + number * PTIME_S + slot * 0.001 - time.perf_counter()
            if delay > 0:
                time.sleep(delay)
            elif delay < -PTIME_S:
                late += 1
            for index in members:
                begun = number - begins[index]
                if begun < 0:
                    continue
                data = b""
                for side, track in enumerate(tracks):
                    payload = turn[(offsets[2 * index + side] + number) % len(turn)]
                    message = len(tracks) * begun + side + 2
                    text = (
                        f'{{"event":"media","sequenceNumber":"{message}","media":{{"track":"{track}",'
                        f'"chunk":"{begun + 1}","timestamp":"{20 * begun}","payload":"{payload}{ends[index]}'
                    )
                    data += frame(text.encode())
                try:
                    if streams[index].send(data) == len(data):
                        sent += len(tracks)
                        continue
                except BlockingIOError:
                    pass
                # Part of a message may have gone: this stream is over, and the figures say so.
                blocked += 1
    # The receiver has read what is in the sockets by then.
    time.sleep(1.0)
    return {"sent": sent, "late_slots": late, "blocked": blocked, "cpu_s": time.process_time()}


if __name__ == "__main__":
    options = sys.argv[4:]
    tracks = TRACKS[:1] if "one-track" in options else TRACKS
    figures = main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), noise="noise" in options, tracks=tracks)
    sys.stdout.write(json.dumps(figures))
