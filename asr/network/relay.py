"""The parent's part of an engine server: relays frames between a worker's connection and the inference process.

Only `Ping` is recognised and answered here, so that an engine that hangs does not look like a machine that is gone. The
inference process checks all other messages. When it dies, each worker is sent those of its utterances that the process
was working on, because workers blame these. A connection that is merely lost blames no utterance.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from asr import messages
from asr.client.engine_server import EngineServer, EngineUser
from asr.client.engines import Engines
from asr.client.local_pool import InferenceProcess
from asr.counters import RecognizerCounters
from asr.inference.links import blamed
from asr.utterance import EngineStatus
from config.metrics.counters import counter
from config.process import framing
from config.process.framing import FrameError, Frames
from config.process.tasks import end_tasks
from config.settings import Settings

RECEIVE_BYTES = 64 * 1024
BUFFER_BYTES = 256 * 1024
"""The most bytes buffered for a worker that does not read; above it, no more of its answers are read from the link."""
PING = framing.encode(messages.Ping())[4:]

log = structlog.get_logger("asr")


@dataclass(slots=True)
class ListenerCounters:
    connections: int = counter("Counts connections of workers that were let in.")
    refused: int = counter("Counts connections that were not let in: no certificate, a wrong token, another version.")
    violations: int = counter("Counts connections of workers that were cut off because their messages made no sense.")
    slow: int = counter("Counts connections of workers that were cut off because they did not read their answers.")
    dropped_partials: int = counter("Counts partials that were not sent because the worker was slow to read.")


class WorkerConnection:
    """The connection of an authenticated worker, and its link to an inference process.

    The link is a plain socket and not an asyncio stream. A transport closes the socket at the first failed write, and
    writing fails as soon as the process has died. The answers that the process wrote before are still in the socket,
    and would be lost. With a plain socket, writes may fail while `_relay_answers` goes on reading to the end.

    Args:
        number: the number of the link, which is never used again.
        worker: the worker's name.
        relay: the relay of the engine that the worker has asked for.
        frames: the framing of the worker's bytes, which may hold the beginning of a frame.
    """

    def __init__(
        self, number: int, worker: str, relay: EngineRelay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        frames: Frames,
    ) -> None:  # fmt: skip
        self.number, self.worker, self.relay = number, worker, relay
        self.early: list[bytes] = []
        """The frames that arrived together with the greeting."""
        self._loop = asyncio.get_running_loop()
        self.received_s = self._loop.time()
        """When bytes from the worker last arrived."""
        self._reader, self._writer, self._frames = reader, writer, frames
        self._link: socket.socket | None = None
        self._answers: asyncio.Task[None] | None = None
        self._last: asyncio.Future[tuple[messages.FromEngine, ...]] = self._loop.create_future()
        """The last messages to the worker, which follow all answers of the inference process. Set by `end`."""
        self._blocked = False
        """Whether the inference process does not read at the moment, so that nothing is read from the worker either."""
        self._ended = False
        """Whether the worker has been sent everything."""
        writer.transport.set_write_buffer_limits(high=BUFFER_BYTES)

    @property
    def attached(self) -> bool:
        """Whether the worker has, or had, a link to the inference process."""
        return self._link is not None

    @property
    def waits(self) -> bool:
        """Whether the worker waits until the engine is ready."""
        return self._link is None and not self._last.done()

    def send(self, *sent: messages.FromEngine) -> None:
        """Send the worker messages of this process, between two frames of the inference process."""
        self._write(b"".join(map(framing.encode, sent)))

    def attach(self, link: socket.socket) -> None:
        """The engine is ready: relay over `link`, this end of a new link to it."""
        link.setblocking(False)
        self._link = link
        self._answers = asyncio.create_task(self._relay_answers(link), name="asr-relay")

    def end(self, *last: messages.FromEngine) -> None:
        """Close the connection after all answers of the inference process and these last messages have been sent.

        Only the sending side of the link is shut down. The inference process then closes the link after its last
        answer, and `_relay_answers` reads up to that point. If the process has died, that point is the end of what it
        had written.
        """
        if not self._last.done():
            self._last.set_result(last)
        if self._link is None:
            self._end(*last)
        else:
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        self._writer.transport.abort()

    def check(self) -> None:
        """Send a `Pong` while no `Ping` can be read, so that the worker knows that this process is alive. The listener
        calls this periodically."""
        if self._blocked:
            self.send(messages.Pong())

    async def relay_requests(self) -> None:
        """Relay the worker's frames to the inference process until the worker is gone. Raises FrameError, OSError."""
        try:
            await self._pass_on(self.early)
            while data := await self._reader.read(RECEIVE_BYTES):
                self.received_s = self._loop.time()
                await self._pass_on(self._frames.feed(data))
        finally:
            self._last.cancel()  # from now on `waits` is False, so no link is attached while the relay ends
            await end_tasks(self._answers)
            if self._link is not None:
                self._link.close()

    async def _pass_on(self, bodies: list[bytes]) -> None:
        out = bytearray()
        for body in bodies:
            if body == PING:
                self.send(messages.Pong())
            else:
                out += framing.frame(body)
        if not out or self._last.done():
            return
        if self._link is None:
            raise FrameError("a message before the engine is ready")
        self._blocked = True
        with contextlib.suppress(OSError):  # the inference process is gone, but its last answers are still relayed
            await self._loop.sock_sendall(self._link, out)
        self._blocked = False

    async def _relay_answers(self, link: socket.socket) -> None:
        """Relay answers to the worker until the link is closed, and then send the last messages."""
        frames = Frames()
        with contextlib.suppress(OSError):
            with contextlib.suppress(ConnectionResetError):  # the process has died with requests unread
                while data := await self._loop.sock_recv(link, RECEIVE_BYTES):
                    self._write(b"".join(map(framing.frame, frames.feed(data))))
                    await self._writer.drain()
            self._end(*await self._last)

    def _write(self, data: bytes) -> None:
        if not (self._ended or self._writer.transport.is_closing()):
            self._writer.write(data)

    def _end(self, *last: messages.FromEngine) -> None:
        self.send(*last)
        self._ended = True
        # Closing a TCP socket with unread received bytes sends a reset, and the worker would lose the answers that it
        # has not read yet (RFC 1122, section 4.2.2.13). So only the sending side is closed, and reading goes on until
        # the worker closes its side. TLS cannot be half closed, but its transport reads on until the worker has closed.
        if self._writer.can_write_eof():
            self._writer.write_eof()
        else:
            self._writer.close()


class EngineRelay:
    """The workers of one inference process. It is the user of its `EngineServer`: see `EngineUser`."""

    def __init__(self, server: InferenceProcess, engines: ServedEngines) -> None:
        self.usage = messages.Usage()
        """The sums over the workers' open utterances, as the inference process last reported them."""
        self.connections: dict[int, WorkerConnection] = {}
        """The connections by their numbers, including those that wait for the engine."""
        self._server, self._engines = server, engines
        self._working: tuple[str, ...] = ()
        """The utterances that the engine is working on, by the engine's names for them."""
        self._accepting = False
        """Whether the engine is ready and will not be replaced, so that workers can be attached."""

    @property
    def legs(self) -> int:
        return self.usage.legs

    @property
    def open_utterances(self) -> int:
        return self.usage.open_utterances

    @property
    def to_blame(self) -> bool:
        return bool(self._working)

    def add(self, connection: WorkerConnection) -> None:
        """Add an authenticated worker, which waits here until the engine is ready."""
        self.connections[connection.number] = connection
        if self._accepting:
            self._attach(connection)
        elif self._server.state is EngineStatus.FAILED:
            connection.end(messages.EngineFailed(self._server.last_end or self._server.reason))

    def remove(self, connection: WorkerConnection) -> None:
        """The worker is gone."""
        self.connections.pop(connection.number, None)

    def _attach(self, connection: WorkerConnection) -> None:
        try:
            ours, theirs = socket.socketpair()
            with theirs, contextlib.ExitStack() as unused:
                unused.enter_context(ours)
                self._server.attach(messages.Attach(connection.number, connection.worker), theirs)
                unused.pop_all()
        except OSError as error:  # the process has just died or does not read, or no file descriptor is free
            log.error("a worker has no link to the engine", worker=connection.worker, reason=str(error))
            connection.end()
        else:
            connection.attach(ours)

    # -- `asr.client.engine_server.EngineUser` --

    def next_message(self) -> None:
        """None: each worker's messages go over the worker's own link."""

    def on_ready(self) -> None:
        self._accepting = True
        for connection in self.connections.values():
            if connection.waits:
                self._attach(connection)

    def on_message(self, message: messages.FromEngine) -> None:
        match message:
            case messages.Working():
                self._working = message.utterance_ids
            case messages.Usage():
                self._on_usage(message)
            case messages.Dropped():
                self._engines.counters.on_dropped(self._server.name, message.partials, message.exhausted)
            case messages.Answered() if (connection := self.connections.get(message.link)) is not None:
                self._engines.on_final(message, connection.worker)
            case messages.LinkClosed() if (connection := self.connections.get(message.link)) is not None:
                self._on_closed(connection, message)

    def stop_accepting(self, *, replaced: bool) -> None:
        self._accepting = False
        for connection in list(self.connections.values()):
            connection.send(messages.Draining())
            if replaced:
                connection.end()

    def on_death(self, reason: str, *, failed: bool) -> None:
        self._engines.counters.crashes += 1
        self._engines.counters.replayed += self.usage.open_utterances
        for connection in self.connections.values():
            if connection.attached:
                connection.end(blamed(self._working, connection.number), messages.EngineCrashed(reason))
            elif failed:
                connection.end(messages.EngineFailed(reason))
        self._forget()

    def on_end(self) -> None:
        for connection in self.connections.values():
            if connection.attached:
                connection.send(messages.Draining())
                connection.end()
        self._forget()

    def _forget(self) -> None:
        """The process is gone, and its successor starts without utterances."""
        self._accepting, self._working, self.usage = False, (), messages.Usage()
        self._server.wake()
        self._engines.emptied.set()

    def _on_usage(self, usage: messages.Usage) -> None:
        before, self.usage = self.usage, usage
        self._engines.counters.add(usage.counters, before.counters)
        self._engines.listener_counters.dropped_partials += usage.dropped_partials - before.dropped_partials
        if not usage.open_utterances:
            self._server.wake()
            self._engines.emptied.set()

    def _on_closed(self, connection: WorkerConnection, closed: messages.LinkClosed) -> None:
        self._engines.on_cut_off(connection, closed.reason, slow=closed.slow)
        if closed.slow:
            connection.abort()
        connection.end()


class ServedEngines(Engines):
    """The engines of an engine server.

    Args:
        on_final: receives the times of each final of a traced utterance, and the name of the worker.
    """

    relays = True

    def __init__(
        self,
        settings: Settings,
        *,
        on_state: Callable[[EngineStatus, str], None],
        on_final: Callable[[messages.Answered, str], None] = lambda final, worker: None,
    ) -> None:
        self.counters, self.listener_counters = RecognizerCounters(), ListenerCounters()
        self.on_final = on_final
        self.emptied = asyncio.Event()
        """Set when the last open utterance of an engine may be over."""
        self._relays: list[EngineRelay] = []
        super().__init__(settings, on_state=on_state)

    def add_user(self, server: EngineServer, *, shared: bool) -> EngineRelay:
        assert isinstance(server, InferenceProcess)
        self._relays.append(relay := EngineRelay(server, self))
        return relay

    def remove_user(self, user: EngineUser) -> None:
        raise AssertionError("the processes of this machine stay")

    def relay(self, engine: int) -> EngineRelay | None:
        """The relay to the engine of this number; None if there are fewer engines."""
        if not 0 <= engine < len(self.servers):
            return None
        user = self.servers[engine].user
        assert isinstance(user, EngineRelay)
        return user

    def on_cut_off(self, connection: WorkerConnection, reason: str, *, slow: bool = False) -> None:
        """Count and log a worker that is cut off, because it sent an invalid message or is `slow` to read."""
        self.listener_counters.slow += slow
        self.listener_counters.violations += not slow
        (log.warning if slow else log.error)("worker cut off", worker=connection.worker, reason=reason)

    # -- the sums over all workers ------------------------------------------------------------------------------------

    @property
    def connections(self) -> list[WorkerConnection]:
        return [connection for each in self._relays for connection in each.connections.values()]

    @property
    def workers(self) -> int:
        """The number of connected workers. Each worker has a connection to each engine."""
        return max((len(each.connections) for each in self._relays), default=0)

    @property
    def open_utterances(self) -> int:
        return sum(each.usage.open_utterances for each in self._relays)

    @property
    def legs(self) -> int:
        """The number of legs that are placed at this engine server."""
        return sum(each.usage.legs for each in self._relays)

    @property
    def files(self) -> int:
        """The number of open utterances of files."""
        return sum(each.usage.files for each in self._relays)

    @property
    def backlog_bytes(self) -> int:
        """The audio of open utterances, in bytes."""
        return sum(each.usage.audio_bytes for each in self._relays)

    @property
    def spilled_bytes(self) -> int:
        """Always 0: an engine server keeps no audio on disk, since workers keep the audio for which it has no room."""
        return 0

    @property
    def delay_ms(self) -> int:
        """How long requests of calls have lately waited before the engine began them, at the slowest engine."""
        return max((each.usage.delay_ms for each in self._relays), default=0)
