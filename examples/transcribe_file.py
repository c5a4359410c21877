"""Prints what is said in any file that FFmpeg reads, as the worker hears it.

    python examples/transcribe_file.py talk.mp4 [--url ws://127.0.0.1:8081/ws/asr] [--key KEY] [--language en]

Needs `pip install websockets av`, or ffmpeg on the path instead of av. The file is sent as fast as the worker takes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

RATE_HZ = 16000


class Unreadable(Exception):
    """The file cannot be read; the message says why."""


def decoded(file: str) -> Iterator[bytes]:
    """int16, mono, at 16 kHz. Raises Unreadable."""
    try:
        import av
    except ImportError:
        yield from by_ffmpeg(file)
        return
    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE_HZ)
    try:
        with av.open(file) as container:
            if not container.streams.audio:
                raise Unreadable(f"{file}: there is no audio in it")
            for frame in (*container.decode(audio=0), None):
                for piece in resampler.resample(frame):
                    yield piece.to_ndarray().tobytes()
    except (OSError, av.FFmpegError) as error:
        raise Unreadable(f"{file}: {error.strerror or error}") from None


def by_ffmpeg(file: str) -> Iterator[bytes]:
    command = ["ffmpeg", "-v", "error", "-i", file, "-f", "s16le", "-ac", "1", "-ar", str(RATE_HZ), "-"]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as ffmpeg:
            assert ffmpeg.stdout is not None
            while data := ffmpeg.stdout.read(RATE_HZ):
                yield data
    except OSError as error:
        raise Unreadable(f"ffmpeg: {error.strerror}, and the package av is not installed") from None
    if ffmpeg.returncode:
        raise Unreadable(f"{file}: ffmpeg could not read it")


async def send(socket: ClientConnection, file: str) -> None:
    pieces = decoded(file)
    try:
        while data := await asyncio.to_thread(next, pieces, b""):
            await socket.send(data)
    finally:
        await socket.send(json.dumps({"type": "finalize"}))


async def transcribe(args: argparse.Namespace) -> int:
    headers = {"Authorization": f"Bearer {args.key}"} if args.key else {}
    async with connect(args.url, additional_headers=headers, compression=None) as socket:
        config = {"type": "config", "encoding": "pcm_s16le", "sample_rate": RATE_HZ, "language": args.language}
        await socket.send(json.dumps(config))
        sending = asyncio.create_task(send(socket, args.file))
        async for text in socket:
            message = json.loads(text)
            if message["type"] == "error":
                sys.exit(f"{message['code']}: {message['message']}")
            if message["type"] == "final" and message["text"]:
                print(f"{message['start_ms'] / 1000:8.2f}  {message['text']}", flush=True)
        await sending
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--url", default="ws://127.0.0.1:8081/ws/asr")
    parser.add_argument("--key", help="an API key with the scope `stream`; not needed on the worker's machine")
    parser.add_argument("--language", default="", help="ISO 639-1; without it the engine detects")
    arguments = parser.parse_args()
    try:
        return asyncio.run(transcribe(arguments))
    except Unreadable as error:
        sys.exit(str(error))
    except InvalidStatus as error:
        sys.exit(f"The worker refuses: HTTP {error.response.status_code} {(error.response.body or b'').decode()}")
    except (OSError, WebSocketException) as error:
        sys.exit(f"There is no worker at {arguments.url} ({error}): `mediaworker serve` starts one.")


if __name__ == "__main__":
    sys.exit(main())
