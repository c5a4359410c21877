"""Twilio streams as pipecat's users take them: its FastAPI transport, its Twilio serialiser, its Silero VAD at 8 kHz.

`python pipecat_receiver.py PORT STREAMS SECONDS`, in an environment of its own; nothing of this project is imported.
"""

import asyncio
import json
import resource
import sys

import uvicorn
import uvloop
from fastapi import FastAPI, WebSocket
from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import InputAudioRawFrame, VADUserStartedSpeakingFrame, VADUserStoppedSpeakingFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport

logger.remove()
RATE_HZ = 8000


class Counter(FrameProcessor):
    packets = started = ended = 0

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, InputAudioRawFrame):
            Counter.packets += 1
        elif isinstance(frame, VADUserStartedSpeakingFrame):
            Counter.started += 1
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            Counter.ended += 1
        await self.push_frame(frame, direction)


app = FastAPI()
connected = 0


@app.websocket("/twilio/stream")
async def stream(websocket: WebSocket):
    global connected
    await websocket.accept()
    start = json.loads(await websocket.receive_text())
    serializer = TwilioFrameSerializer(start["streamSid"], params=TwilioFrameSerializer.InputParams(auto_hang_up=False))
    transport = FastAPIWebsocketTransport(
        websocket, FastAPIWebsocketParams(audio_in_enabled=True, audio_out_enabled=False, serializer=serializer)
    )
    vad = VADProcessor(vad_analyzer=SileroVADAnalyzer(sample_rate=RATE_HZ))
    task = PipelineTask(
        Pipeline([transport.input(), vad, Counter()]),
        params=PipelineParams(audio_in_sample_rate=RATE_HZ, audio_out_sample_rate=RATE_HZ),
        cancel_on_idle_timeout=False,
    )
    connected += 1
    await PipelineRunner(handle_sigint=False).run(task)


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main(port, streams, seconds):
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    while connected < streams:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    before = cpu_s()
    await asyncio.sleep(seconds + 2)
    figures = {"packets": Counter.packets, "utterances": Counter.ended, "cpu_s": cpu_s() - before}
    figures["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures), flush=True)
    server.should_exit = True
    await asyncio.wait({serving}, timeout=1)
    import os

    os._exit(0)  # whatever its pipelines still wait for


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
