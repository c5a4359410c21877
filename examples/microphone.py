"""Shows what is said into the microphone while it is said; Ctrl-C ends it.

    python examples/microphone.py [--url ws://127.0.0.1:8081/ws/asr] [--key KEY] [--language en]

Needs `pip install websockets`, and one of: the package sounddevice, `arecord` (ALSA), `parec` (PulseAudio). The first
that hears something is used.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

RATE_HZ = 16000
PIECE = RATE_HZ // 10 * 2
COMMANDS = (
    ["arecord", "-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", str(RATE_HZ)],
    ["parec", "--raw", "--format=s16le", "--channels=1", f"--rate={RATE_HZ}", "--latency-msec=50"],
)


class NoMicrophone(Exception):
    """Nothing here records; the message says what was tried."""


async def recorded() -> AsyncIterator[bytes]:
    """int16, mono, at 16 kHz, 100 ms at a time. Raises NoMicrophone."""
    tried = []
    for source in (by_sounddevice, *(partial(by_command, command) for command in COMMANDS)):
        try:
            async for data in source():
                yield data
            return
        except NoMicrophone as error:
            tried.append(str(error))
    raise NoMicrophone(f"Nothing records here: {'; '.join(tried)}.")


async def by_sounddevice() -> AsyncIterator[bytes]:
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: the package is there, PortAudio's library is not
        raise NoMicrophone(f"sounddevice: {error}") from None
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    soon = asyncio.get_running_loop().call_soon_threadsafe
    take = lambda data, *_: soon(heard.put_nowait, bytes(data))  # noqa: E731
    try:
        stream = sounddevice.RawInputStream(RATE_HZ, PIECE // 2, channels=1, dtype="int16", callback=take)
        stream.start()
    except (sounddevice.PortAudioError, ValueError) as error:  # a machine without a sound device
        raise NoMicrophone(f"sounddevice: {error}") from None
    with stream:
        while True:
            yield await heard.get()


async def by_command(command: list[str]) -> AsyncIterator[bytes]:
    try:
        recorder = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise NoMicrophone(f"{command[0]}: {error.strerror}") from None
    assert recorder.stdout is not None and recorder.stderr is not None
    complaint = asyncio.create_task(recorder.stderr.read())
    some = False
    try:
        while data := await recorder.stdout.read(PIECE):
            some = True
            yield data
        await recorder.wait()
        if not some:
            said = (await complaint).decode(errors="replace").strip().splitlines()
            raise NoMicrophone(f"{command[0]}: {said[-1] if said else 'it ended without a sound'}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            recorder.terminate()
        await asyncio.gather(recorder.wait(), complaint)


async def listen(args: argparse.Namespace) -> None:
    """Raises NoMicrophone, OSError, WebSocketException."""
    headers = {"Authorization": f"Bearer {args.key}"} if args.key else {}
    async with connect(args.url, additional_headers=headers, compression=None) as socket:
        config = {"type": "config", "encoding": "pcm_s16le", "sample_rate": RATE_HZ, "language": args.language}
        await socket.send(json.dumps(config))

        async def send() -> None:
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    async for data in recorded():
                        await socket.send(data)
            finally:
                with contextlib.suppress(ConnectionClosed):
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
        await sending


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="ws://127.0.0.1:8081/ws/asr")
    parser.add_argument("--key", help="an API key with the scope `stream`; not needed on the worker's machine")
    parser.add_argument("--language", default="", help="ISO 639-1; without it the engine detects")
    arguments = parser.parse_args()
    try:
        asyncio.run(listen(arguments))
    except NoMicrophone as error:
        sys.exit(str(error))
    except InvalidStatus as error:
        sys.exit(f"The worker refuses: HTTP {error.response.status_code} {(error.response.body or b'').decode()}")
    except (OSError, WebSocketException) as error:
        sys.exit(f"There is no worker at {arguments.url} ({error}): `mediaworker serve` starts one.")
