"""The child process that decodes a file: `python -m mediaworker.files.decoder FILE REQUESTS ANSWERS NAME`.

FILE, REQUESTS and ANSWERS are descriptors. The process runs at a lower priority, confines itself (`sandbox`) before it
reads the first byte of the file, and ends with its parent or when REQUESTS is closed. It imports no torch: it only
decodes and runs the VAD.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from config.process.child_process import end_with_parent
from config.process.framing import Frames, decode, encode
from mediaworker.files import messages, sandbox

if TYPE_CHECKING:
    from audio.vad.silero import SileroVad

NICE = 10
PROGRESS_S = 1.0
"""The longest time between two `Progress` messages: the parent ends a child that sends nothing as stalled."""
PROGRESS_AUDIO_S = 30.0
"""The most audio between two `Progress` messages."""


class Parent:
    """The connection to the parent process, and the grants that it has sent."""

    def __init__(self, requests: socket.socket, answers: socket.socket) -> None:
        self._requests, self._answers = requests, answers
        self._frames, self._granted = Frames(), 0
        self._bodies: deque[bytes] = deque()

    def begin(self) -> messages.Begin:
        message = self._next()
        assert isinstance(message, messages.Begin), "the first message begins"
        return message

    def send(self, message: messages.FromReader) -> None:
        try:
            self._answers.sendall(encode(message))
        except OSError:
            os._exit(0)  # the parent has gone

    def send_granted(self, message: messages.Chunk) -> None:
        """Send a chunk once there is a grant for it."""
        while not self._granted:
            grant = self._next()
            assert isinstance(grant, messages.Grant), "begun twice"
            self._granted += grant.chunks
        self._granted -= 1
        self.send(message)

    def _next(self) -> messages.ToReader:
        while not self._bodies:
            data = self._requests.recv(65536)
            if not data:
                os._exit(0)
            self._bodies += self._frames.feed(data)
        return decode(messages.to_reader, self._bodies.popleft())


def main() -> None:
    file, requests, answers = map(int, sys.argv[1:4])
    end_with_parent()
    with contextlib.suppress(OSError):  # where the system forbids it, the child runs at the worker's own priority
        os.nice(NICE)
    vad = _load()
    with (
        socket.socket(fileno=requests) as reads,
        socket.socket(fileno=answers) as writes,
        os.fdopen(file, "rb") as source,
    ):
        parent = Parent(reads, writes)
        begin = parent.begin()
        try:
            sandbox.confine(memory_bytes=begin.memory_bytes, cpu_s=begin.cpu_s)
            _read(parent, begin, source, sys.argv[4], vad)
        except sandbox.SandboxError as error:
            parent.send(messages.Failed("internal", f"the process that reads files cannot be confined: {error}"))
        except MemoryError:
            limit = begin.memory_bytes >> 20
            parent.send(messages.Failed("too_large", f"decoding it takes more than {limit} MB of memory"))
        except Exception:  # standard error may be a file, and the sandbox forbids writing to files
            reason = "the process that reads files failed; the worker's log says why"
            parent.send(messages.Failed("internal", reason, traceback.format_exc()))


def _load() -> SileroVad:
    """Import and open all that decoding needs: at the lower priority, and before the sandbox forbids opening files."""
    import audio.segmentation  # noqa: F401
    import mediaworker.files.media  # noqa: F401
    from audio.vad.silero import SileroVad

    return SileroVad()


def _read(parent: Parent, begin: messages.Begin, source: BinaryIO, name: str, vad: SileroVad) -> None:
    from audio.segmentation import Scanner, SpeechSegment
    from mediaworker.files.media import RATE_HZ, MediaError, MediaFile

    known, index = frozenset(begin.skip), 0

    def send_chunks(channel: int, stretches: Iterator[SpeechSegment]) -> None:
        nonlocal index
        for each in stretches:
            audio = b"" if index in known else each.samples.tobytes()
            chunk = messages.Chunk(index, channel, each.start, each.end, each.audio_start, audio, each.torn)
            if index in known:
                parent.send(chunk)
            else:
                parent.send_granted(chunk)
            index += 1

    try:
        media = MediaFile(source, name, channels=begin.channels, max_s=begin.max_s)
        parent.send(messages.Opened(media.duration_s, media.channels))
        scanners = [Scanner(vad, begin.endpointing) for _ in range(media.channels)]
        sent_s, sent_at = 0.0, time.monotonic()
        for block in media.blocks():
            for channel, (scanner, samples) in enumerate(zip(scanners, block, strict=True)):
                send_chunks(channel, scanner.feed(samples))
            position_s = scanners[0].position * 2 / RATE_HZ
            now = time.monotonic()
            if position_s - sent_s >= PROGRESS_AUDIO_S or now - sent_at >= PROGRESS_S:
                sent_s, sent_at = position_s, now
                parent.send(messages.Progress(position_s))
        for channel, scanner in enumerate(scanners):
            send_chunks(channel, scanner.finish())
        parent.send(messages.Ended(scanners[0].position * 2 / RATE_HZ, media.damaged, media.jumps))
    except MediaError as error:
        parent.send(messages.Failed(error.fault, error.reason))


if __name__ == "__main__":
    main()
