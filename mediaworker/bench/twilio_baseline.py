"""The usual design, for comparison: a web framework's WebSocket, json, base64, and one ONNX call per track and window.

`python -m mediaworker.bench.twilio_baseline PORT STREAMS SECONDS`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import resource
import sys
from typing import Any

import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from audio.g711 import ulaw_decode
from audio.weights import silero_path


class Track:
    def __init__(self, vad: Any) -> None:
        self._vad = vad
        self._samples = np.zeros(0, np.float32)
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros((1, 32), np.float32)
        self.windows = 0

    def receive(self, codes: bytes) -> None:
        self._samples = np.concatenate([self._samples, ulaw_decode(codes).astype(np.float32) / 32768])
        while len(self._samples) >= 256:
            window, self._samples = self._samples[None, :256], self._samples[256:]
            samples = np.concatenate([self._context, window], 1)
            feed = {"input": samples, "state": self._state, "sr": np.array(8000, np.int64)}
            _, self._state = self._vad.run(None, feed)
            self._context = window[:, -32:]
            self.windows += 1


async def main(port: int, streams: int, seconds: float) -> dict[str, float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    vad = onnxruntime.InferenceSession(str(silero_path()), options, providers=["CPUExecutionProvider"])
    started = packets = 0

    async def stream(websocket: WebSocket) -> None:
        nonlocal started, packets
        await websocket.accept()
        tracks: dict[str, Track] = {}
        try:
            while True:
                message = json.loads(await websocket.receive_text())
                if message["event"] == "start":
                    tracks = {name: Track(vad) for name in message["start"]["tracks"]}
                    started += 1
                elif message["event"] == "media":
                    packets += 1
                    tracks[message["media"]["track"]].receive(base64.b64decode(message["media"]["payload"]))
        except WebSocketDisconnect:
            pass

    app = Starlette(routes=[WebSocketRoute("/twilio/stream", stream)])
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", ws="websockets-sansio", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while started < streams:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(seconds + 1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    server.should_exit = True
    await asyncio.wait({serving}, timeout=5)
    return {"packets": packets, "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


if __name__ == "__main__":
    import uvloop

    sys.stdout.write(json.dumps(uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))))
