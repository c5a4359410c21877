"""The parent's part of an engine server: frames go between a worker's connection and its link to the inference process.

No frame is decoded but `Ping`, which is answered here: an engine that hangs must not look as if the machine were gone.
The inference process checks what workers say. When it dies, each worker is told which of its utterances it was working
on, for that is what they blame; a connection that is merely lost blames nobody.
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
"""Bytes that are held for a reader, in either direction; with more, nothing further is read for it."""
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
    """One worker, which has been let in, and its link to an inference process.

    The link is no stream of asyncio: that would be closed by its first write to a process that has died, and the
    answers that it still holds would be lost.

    Args:
        number: of its link; no other has had it.
        worker: its name.
        relay: to the engine that it has asked for.
        frames: cuts what comes from the worker.
    """

    def __init__(
        self, number: int, worker: str, relay: EngineRelay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        frames: Frames,
    ) -> None:  # fmt: skip
        self.number, self.worker, self.relay = number, worker, relay
        self.early: list[bytes] = []
        """Frames that came right behind its greeting."""
        self._loop = asyncio.get_running_loop()
        self.received_s = self._loop.time()
        """When the worker last said something."""
        self._reader, self._writer, self._frames = reader, writer, frames
        self._link: socket.socket | None = None
        self._answers: asyncio.Task[None] | None = None
        self._last: asyncio.Future[tuple[messages.FromEngine, ...]] = self._loop.create_future()
        """What the worker is told when the link is closed."""
        self._blocked = False
        """The inference process does not read, so nothing further is read from the worker."""
        self._ended = False
        """The worker has been sent everything."""
        writer.transport.set_write_buffer_limits(high=BUFFER_BYTES)

    @property
    def attached(self) -> bool:
        """Whether it has, or had, a link to the inference process."""
        return self._link is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for the engine."""
        return self._link is None and not self._last.done()

    def send(self, *sent: messages.FromEngine) -> None:
        """Send this between two frames of the inference process."""
        self._write(b"".join(map(framing.encode, sent)))

    def attach(self, link: socket.socket) -> None:
        """The engine is ready, and this is the end of a new link to it."""
        link.setblocking(False)
        self._link = link
        self._answers = asyncio.create_task(self._relay_answers(link), name="asr-relay")

    def end(self, *last: messages.FromEngine) -> None:
        """Close the connection when everything has been sent that the inference process had answered, and this."""
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
        """Called again and again. Where no `Ping` can be read, the worker has to know that this process is well."""
        if self._blocked:
            self.send(messages.Pong())

    async def relay_requests(self) -> None:
        """From the worker, until it is gone. Raises FrameError, OSError."""
        try:
            await self._pass_on(self.early)
            while data := await self._reader.read(RECEIVE_BYTES):
                self.received_s = self._loop.time()
                await self._pass_on(self._frames.feed(data))
        finally:
            self._last.cancel()  # it gets no link from now on
            await end_tasks(self._answers)
            if self._link is not None:
                self._link.close()

    async def _pass_on(self, bodies: list[bytes]) -> None:
        out = bytearray()
        for body in bodies:
            if body == PING:
                self.send(messages.Pong())
            else:
                out += len(body).to_bytes(4, "big") + body
        if not out or self._last.done():
            return
        if self._link is None:
            raise FrameError("a message before the engine is ready")
        self._blocked = True
        with contextlib.suppress(OSError):  # the inference process is gone, and its answers are still relayed
            await self._loop.sock_sendall(self._link, out)
        self._blocked = False

    async def _relay_answers(self, link: socket.socket) -> None:
        """To the worker, until the link is closed and the worker has been sent everything."""
        frames = Frames()
        with contextlib.suppress(OSError):
            with contextlib.suppress(ConnectionResetError):  # the process has died with requests unread
                while data := await self._loop.sock_recv(link, RECEIVE_BYTES):
                    for body in frames.feed(data):
                        self._write(len(body).to_bytes(4, "big") + body)
                    await self._writer.drain()
            self._end(*await self._last)

    def _write(self, data: bytes) -> None:
        if not (self._ended or self._writer.transport.is_closing()):
            self._writer.write(data)

    def _end(self, *last: messages.FromEngine) -> None:
        self.send(*last)
        self._ended = True
        # A TCP connection that is closed with something unread takes along what the worker has not read yet. TLS reads
        # on until the worker has closed its side.
        if self._writer.can_write_eof():
            self._writer.write_eof()
        else:
            self._writer.close()


class EngineRelay:
    """The workers of one inference process, which is whom its `EngineServer` works for: see `EngineUser`."""

    def __init__(self, server: InferenceProcess, engines: ServedEngines) -> None:
        self.usage = messages.Usage()
        """What its workers have there."""
        self.connections: dict[int, WorkerConnection] = {}
        """By their numbers, those that wait for the engine included."""
        self._server, self._engines = server, engines
        self._working: tuple[str, ...] = ()
        """What the engine is working on, by its names."""
        self._takes = False
        """The engine is ready, and not about to be replaced."""

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
        """A worker has been let in. It waits here until the engine is ready."""
        self.connections[connection.number] = connection
        if self._takes:
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
        except OSError as error:  # it has just died, or reads nothing; or there is no file descriptor to be had
            log.error("a worker has no link to the engine", worker=connection.worker, reason=str(error))
            connection.end()
        else:
            connection.attach(ours)

    # -- `asr.client.engine_server.EngineUser` --

    def next_message(self) -> None:
        """Workers' messages go over links of their own."""

    def on_ready(self) -> None:
        self._takes = True
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
        self._takes = False
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
        """The process is gone, and the next one has nothing."""
        self._takes, self._working, self.usage = False, (), messages.Usage()
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
        on_final: takes the times of each final of a traced utterance, and the name of the worker.
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
        """Set when an engine may have nothing to do any more."""
        self._relays: list[EngineRelay] = []
        super().__init__(settings, on_state=on_state)

    def add_user(self, server: EngineServer, *, shared: bool) -> EngineRelay:
        assert isinstance(server, InferenceProcess)
        self._relays.append(relay := EngineRelay(server, self))
        return relay

    def remove_user(self, user: EngineUser) -> None:
        raise AssertionError("the processes of this machine stay")

    def relay(self, engine: int) -> EngineRelay | None:
        """The relay to the engine of this number; None: there are fewer."""
        if not 0 <= engine < len(self.servers):
            return None
        user = self.servers[engine].user
        assert isinstance(user, EngineRelay)
        return user

    def on_cut_off(self, connection: WorkerConnection, reason: str, *, slow: bool = False) -> None:
        """A worker is cut off, because of what it has sent or because it does not read."""
        self.listener_counters.slow += slow
        self.listener_counters.violations += not slow
        (log.warning if slow else log.error)("worker cut off", worker=connection.worker, reason=reason)

    # -- what all workers have here -----------------------------------------------------------------------------------

    @property
    def connections(self) -> list[WorkerConnection]:
        return [connection for each in self._relays for connection in each.connections.values()]

    @property
    def workers(self) -> int:
        """How many workers are connected. Each has a connection to each engine."""
        return max((len(each.connections) for each in self._relays), default=0)

    @property
    def open_utterances(self) -> int:
        return sum(each.usage.open_utterances for each in self._relays)

    @property
    def legs(self) -> int:
        """Legs that have their place here."""
        return sum(each.usage.legs for each in self._relays)

    @property
    def files(self) -> int:
        """Open utterances of files."""
        return sum(each.usage.files for each in self._relays)

    @property
    def backlog_bytes(self) -> int:
        """The audio of open utterances."""
        return sum(each.usage.audio_bytes for each in self._relays)

    @property
    def spilled_bytes(self) -> int:
        """None of it is on disk: workers keep what there is no room for."""
        return 0

    @property
    def delay_ms(self) -> int:
        """How long requests of calls have lately waited before the engine began with them."""
        return max((each.usage.delay_ms for each in self._relays), default=0)
