"""The usual design, for comparison: a web framework's WebSocket, json, base64, and one ONNX call per track and window.

`python -m benchmarks.media.twilio_baseline PORT STREAMS SECONDS`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import resource
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from audio.codecs.g711 import ulaw_decode
from benchmarks.media.onnx_vad import OnnxVad, session


async def main(port: int, streams: int, seconds: float) -> dict[str, float]:
    vad = session()
    started = packets = 0

    async def stream(websocket: WebSocket) -> None:
        nonlocal started, packets
        await websocket.accept()
        tracks: dict[str, OnnxVad] = {}
        try:
            while True:
                message = json.loads(await websocket.receive_text())
                if message["event"] == "start":
                    tracks = {name: OnnxVad(vad) for name in message["start"]["tracks"]}
                    started += 1
                elif message["event"] == "media":
                    packets += 1
                    tracks[message["media"]["track"]].receive(
                        ulaw_decode(base64.b64decode(message["media"]["payload"]))
                    )
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
