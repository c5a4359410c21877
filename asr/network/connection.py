"""One worker's connection to an engine server: what is written to it, and when it is cut off."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from asr import messages
from asr.network.session import WorkerSession
from config import framing
from config.metrics.counters import counter

HELLO_S = 5.0
"""How long a connection may take to greet, with its TLS handshake."""
RECEIVE_BYTES = 64 * 1024
SLOW_BYTES, FULL_BYTES = 1 << 20, 16 << 20
"""A worker that has so much to read gets no partials; one that has so much is cut off."""
DELAY_S = 2.0
"""Over about so long the delay of requests is averaged."""

log = structlog.get_logger("asr")


@dataclass(slots=True)
class ListenerCounters:
    connections: int = counter("Counts connections of workers that were let in.")
    refused: int = counter("Counts connections that were not let in: no certificate, a wrong token, another version.")
    violations: int = counter("Counts connections of workers that were cut off because their messages made no sense.")
    slow: int = counter("Counts connections of workers that were cut off because they did not read their answers.")
    dropped_partials: int = counter("Counts partials that were not sent because the worker was slow to read.")


class Delay:
    """How long requests have lately waited: an average that forgets. Time in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._value_s, self._at_s = 0.0, 0.0

    def record(self, waited_s: float, now_s: float) -> None:
        keep = math.exp(-max(0.0, now_s - self._at_s) / DELAY_S) * 0.9
        self._value_s, self._at_s = keep * self._value_s + (1.0 - keep) * waited_s, now_s

    def ms(self, now_s: float) -> int:
        """In steps of 10 ms, so that it is not told anew with every answer."""
        return round(100 * self._value_s * math.exp(-max(0.0, now_s - self._at_s) / DELAY_S)) * 10


class WorkerConnection:
    """One worker."""

    def __init__(
        self,
        session: WorkerSession,
        writer: asyncio.StreamWriter,
        counters: ListenerCounters,
        load: Callable[[WorkerSession], messages.Load],
    ) -> None:
        """`load`: what a worker is told of the server's load."""
        self.session = session
        self.ready = False
        """The worker has been told that the engine is."""
        self.heard_s = asyncio.get_running_loop().time()
        """When it last said something."""
        self._writer, self._counters, self._load = writer, counters, load
        self._due = False

    def send_soon(self) -> None:
        """The answers of this turn of the loop go out together."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.send)

    def send(self, *more: messages.FromEngine) -> None:
        self._due = False
        transport = self._writer.transport
        if transport.is_closing():
            return
        waiting = transport.get_write_buffer_size()
        answers = self.session.take()
        if waiting > FULL_BYTES:
            self._counters.slow += 1
            log.warning("worker cut off: it does not read its answers", worker=self.session.worker)
            self.abort()
            return
        if waiting > SLOW_BYTES:
            kept = [each for each in answers if not isinstance(each, messages.Heard) or each.hypothesis.final]
            self._counters.dropped_partials += len(answers) - len(kept)
            answers = kept
        load = self._load(self.session)
        if load != self.session.told:
            self.session.told = load
            answers.append(load)
        if answers := [*answers, *more]:
            self._writer.write(b"".join(map(framing.encode, answers)))

    def abort(self) -> None:
        self._writer.transport.abort()

    def close(self, *last: messages.FromEngine) -> None:
        """Send this, and nothing after it."""
        self.session.close()
        if not self._writer.transport.is_closing():
            self.send(*last)
            self._writer.close()


async def opened(
    accepted: socket.socket, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Streams over an accepted connection, after the TLS handshake. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(RECEIVE_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    handshake_s = HELLO_S if context is not None else None
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, accepted, ssl=context, ssl_handshake_timeout=handshake_s
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def next_frames(reader: asyncio.StreamReader, frames: framing.Frames) -> list[bytes]:
    """Until there is a whole frame. Raises EOFError, FrameError."""
    while not (bodies := frames.feed(await reader.read(RECEIVE_BYTES))):
        if reader.at_eof():
            raise EOFError
    return bodies
