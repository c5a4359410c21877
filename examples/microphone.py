"""Shows what is said into the microphone while it is said; Ctrl-C ends it.

    python examples/microphone.py [--url ws://127.0.0.1:8081/ws/asr] [--key KEY] [--language en]

Needs `pip install websockets`, and one of: the package sounddevice, `arecord` (ALSA), `parec` (PulseAudio).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator

from websockets.asyncio.client import connect

RATE_HZ = 16000
PIECE = RATE_HZ // 10 * 2
COMMANDS = (
    ["arecord", "-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", str(RATE_HZ)],
    ["parec", "--raw", "--format=s16le", "--channels=1", f"--rate={RATE_HZ}", "--latency-msec=50"],
)


async def recorded() -> AsyncIterator[bytes]:
    """int16, mono, at 16 kHz, 100 ms at a time."""
    with contextlib.suppress(ImportError, OSError):
        import sounddevice

        heard: asyncio.Queue[bytes] = asyncio.Queue()
        soon = asyncio.get_running_loop().call_soon_threadsafe
        take = lambda data, *_: soon(heard.put_nowait, bytes(data))  # noqa: E731
        with sounddevice.RawInputStream(RATE_HZ, PIECE // 2, channels=1, dtype="int16", callback=take):
            while True:
                yield await heard.get()
    if (command := next((each for each in COMMANDS if shutil.which(each[0])), None)) is None:
        sys.exit("no sounddevice, arecord or parec: nothing records")
    recorder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert recorder.stdout is not None
    try:
        while data := await recorder.stdout.read(PIECE):
            yield data
    finally:
        with contextlib.suppress(ProcessLookupError):
            recorder.terminate()


async def listen(args: argparse.Namespace) -> None:
    headers = {"Authorization": f"Bearer {args.key}"} if args.key else {}
    async with connect(args.url, additional_headers=headers, compression=None) as socket:
        config = {"type": "config", "encoding": "pcm_s16le", "sample_rate": RATE_HZ, "language": args.language}
        await socket.send(json.dumps(config))

        async def send() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                async for data in recorded():
                    await socket.send(data)
            await socket.send(json.dumps({"type": "finalize"}))

        sending = asyncio.create_task(send())
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, sending.cancel)
        async for text in socket:
            message = json.loads(text)
            if message["type"] in ("partial", "final"):
                end = "\n" if message["type"] == "final" else ""
                print(f"\r\x1b[K{message['text']}", end=end, flush=True)
            elif message["type"] in ("error", "warming_up"):
                print(message.get("message", "the model is being loaded: speak, it is kept"), file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="ws://127.0.0.1:8081/ws/asr")
    parser.add_argument("--key", help="an API key with the scope `stream`; not needed on the worker's machine")
    parser.add_argument("--language", default="", help="ISO 639-1; without it the engine detects")
    asyncio.run(listen(parser.parse_args()))
