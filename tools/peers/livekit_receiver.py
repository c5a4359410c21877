"""Twilio streams through livekit's plug-in for Silero, the VAD alone: the plainest WebSocket server in front of it.

`python livekit_receiver.py PORT STREAMS SECONDS`, in an environment of its own; nothing of this project is imported.
"""

import asyncio
import audioop
import base64
import contextlib
import json
import os
import resource
import sys

import uvloop
from livekit import rtc
from livekit.agents.vad import VADEventType
from livekit.plugins import silero
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

RATE_HZ = 8000
counts = {"packets": 0, "utterances": 0}
connected = 0


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main(port, streams, seconds):
    vad = silero.VAD.load(sample_rate=RATE_HZ)

    async def heard(stream):
        async for event in stream:
            counts["utterances"] += event.type == VADEventType.END_OF_SPEECH

    async def take(websocket):
        global connected
        stream = vad.stream()
        listening = asyncio.create_task(heard(stream))
        with contextlib.suppress(ConnectionClosed):
            async for text in websocket:
                message = json.loads(text)
                if message["event"] == "start":
                    connected += 1
                elif message["event"] == "media":
                    counts["packets"] += 1
                    pcm = audioop.ulaw2lin(base64.b64decode(message["media"]["payload"]), 2)
                    stream.push_frame(rtc.AudioFrame(pcm, RATE_HZ, 1, len(pcm) // 2))
        await stream.aclose()
        listening.cancel()

    async with serve(take, "127.0.0.1", port, compression=None, ping_interval=None):
        print("ready", flush=True)
        while connected < streams:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        before = cpu_s()
        await asyncio.sleep(seconds + 2)
        rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**counts, "cpu_s": cpu_s() - before, "rss_mb": rss_mb}), flush=True)
        os._exit(0)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
