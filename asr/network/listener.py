"""The port of an engine server: workers connect, show a certificate or a token, and have their speech recognised.

Whoever is not let in is told nothing. A worker that makes no sense is told why and cut off; the others notice nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from asr import greeting, messages
from asr.client.recognizer import Recognizer
from asr.client.servers.tasks import Tasks
from asr.network.connection import (
    HELLO_S,
    RECEIVE_BYTES,
    Delay,
    ListenerCounters,
    WorkerConnection,
    next_frames,
    opened,
)
from asr.network.session import AnsweredFinal, ProtocolError, WorkerSession
from asr.utterance import EngineStatus
from config import framing
from config.addresses import bound_tcp, peer_key
from config.log_rate_limit import LogRateLimit
from config.tasks import again_and_again

MAX_GREETING, MAX_WORKERS = 64, 1000
"""Connections that have not greeted yet, and workers."""
MAX_GREETING_OF_ADDRESS = 16
"""Of one address or IPv6 /64. Many workers behind one address that come at once try again."""
SILENCE_S = 60.0
"""A worker that has said nothing for so long is gone: it pings more often than that."""
TELL_S = 1.0
"""How often a change of the load is told to a worker that gets no answers."""

log = structlog.get_logger("asr")


@dataclass(frozen=True, slots=True)
class _Greeted:
    """A connection that was let in."""

    worker: str
    """Its name."""
    more: list[bytes]
    """Frames that came with its greeting."""
    proof: bytes = b""
    """That this server knows the token, where there are no certificates."""


class EngineListener:
    """See the module.

    Args:
        context: makes the server's side of TLS; None: workers show `token` instead.
        name: of this server, for the log of workers.
        on_final: takes the times of each final of a traced utterance, on the loop's clock.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        address: tuple[str, int],
        *,
        name: str,
        context: ssl.SSLContext | None,
        token: str,
        max_bytes: int,
        on_final: Callable[[AnsweredFinal], None] | None = None,
    ) -> None:
        assert context is not None or token, "somebody has to be kept out"
        self.counters = ListenerCounters()
        self.port = address[1]
        """The port bound, once started."""
        self._recognizer, self._address, self._name = recognizer, address, name
        self._context, self._token, self._max_bytes = context, token, max_bytes
        if token:
            greeting.key_of(token)  # now, and not while calls go on
        self._on_final = on_final
        self._numbers = itertools.count(1)
        self._connections: set[WorkerConnection] = set()
        self._delay = Delay()
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self._greeting: dict[asyncio.Task[None], str] = {}
        """Connections that have not greeted yet, oldest first, and the address or network of each."""
        self._tell: asyncio.TimerHandle | None = None
        self.draining = False
        """It is about to end."""
        self._emptied = asyncio.Event()
        self._limit = LogRateLimit()

    async def start(self) -> None:
        """Raises OSError when the port is not to be had."""
        self._socket = bound_tcp(*self._address)
        self.port = self._socket.getsockname()[1]
        self._accepting = self._tasks.start(
            again_and_again(partial(self._accept, self._socket), "asr-listener"), "asr-listener"
        )
        self._tell_again()

    async def drain(self, within_s: float) -> None:
        """Take no more utterances, and answer those that there are."""
        self.draining = True
        self._close_port()
        for connection in self._connections:
            connection.send(messages.Draining())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while any(len(connection.session) for connection in self._connections):
                    self._emptied.clear()
                    await self._emptied.wait()

    async def stop(self) -> None:
        if self._tell is not None:
            self._tell.cancel()
        self._close_port()
        for connection in list(self._connections):
            connection.close()
        await self._tasks.stop()

    @property
    def workers(self) -> int:
        """How many are connected."""
        return len(self._connections)

    @property
    def legs(self) -> int:
        """That have their place here, of all workers."""
        return sum(len(each.session.legs) for each in self._connections)

    @property
    def files(self) -> int:
        """Open utterances of files, of all workers."""
        return sum(each.session.files for each in self._connections)

    @property
    def delay_ms(self) -> int:
        """How long requests of calls have lately waited before the engine began with them."""
        return self._delay.ms(asyncio.get_running_loop().time())

    def load(self, session: WorkerSession) -> messages.Load:
        """What a worker is told."""
        share = self._max_bytes // max(1, len(self._connections))
        return messages.Load(self.legs - len(session.legs), self.files - session.files, self.delay_ms, share)

    def on_state(self, state: EngineStatus, reason: str) -> None:
        """The engine has another state. While it is not ready, nothing is kept here: another server may be."""
        if state is EngineStatus.READY:
            for connection in self._connections:
                connection.send(self._ready())
                connection.ready = True
            return
        blamed = {each: each.session.blamed for each in self._connections if each.ready}
        total = sum(map(len, blamed.values()))
        for connection, names in blamed.items():
            connection.close(messages.Working(names, shared=total > len(names)), messages.EngineCrashed(reason))
        if state is EngineStatus.FAILED:
            for connection in self._connections - blamed.keys():
                connection.close(messages.EngineFailed(reason))

    def _ready(self) -> messages.EngineReady:
        runtime = self._recognizer.runtime
        assert runtime is not None
        return messages.EngineReady(self._recognizer.engine, self._recognizer.words, runtime)

    # -- a connection -----------------------------------------------------------------------------------------------

    async def _accept(self, port: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(port)
            except OSError as error:  # no file descriptor to be had just now
                log.error("no connection can be accepted", reason=error.strerror or str(error))
                await asyncio.sleep(TELL_S)
                continue
            peer = address[0]
            if len(self._connections) >= MAX_WORKERS:
                accepted.close()
                self._refuse(peer, "there are too many connections")
                continue
            self._make_room(network := peer_key(peer))
            self._greeting[self._tasks.start(self._serve(accepted, peer), "asr-worker")] = network

    def _make_room(self, network: str) -> None:
        """For one more greeting: the oldest one gives way, for a worker greets at once. Those of whoever has most do so
        first, so that silent strangers keep nobody out."""
        of_each = Counter(self._greeting.values())
        if of_each[network] >= MAX_GREETING_OF_ADDRESS:
            crowded, whose = network, " of this address"
        elif of_each.total() >= MAX_GREETING:
            crowded, whose = of_each.most_common(1)[0][0], ""
        else:
            return
        oldest = next(task for task, its in self._greeting.items() if its == crowded)
        del self._greeting[oldest]
        oldest.cancel()
        self._refuse(crowded, f"it has not greeted, and there are too many connections{whose}")

    async def _serve(self, accepted: socket.socket, peer: str) -> None:
        writer, greeted = None, None
        try:
            try:
                async with asyncio.timeout(HELLO_S):
                    reader, writer = await opened(accepted, self._context)
                    # Behind TLS, audio may follow the first message at once.
                    frames = framing.Frames(framing.MAX_FRAME_BYTES if self._context else greeting.MAX_BYTES)
                    greeted = await self._greet(reader, writer, frames, peer)
                    frames.limit = framing.MAX_FRAME_BYTES
            except ssl.SSLError as error:
                self._refuse(peer, f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}")
            except (OSError, TimeoutError, EOFError, framing.FrameError):
                self._refuse(peer, "it has not greeted")
            finally:
                if (task := asyncio.current_task()) is not None:
                    self._greeting.pop(task, None)
            if greeted is not None and writer is not None:
                await self._talk(greeted, reader, writer, frames)
        finally:
            if writer is None:
                accepted.close()
            else:
                writer.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: framing.Frames, peer: str
    ) -> _Greeted | None:
        """-> a worker, if it is let in. Raises EOFError, FrameError."""
        bodies, tls = await next_frames(reader, frames), self._context is not None
        version, first = messages.decode_version(bodies[0]), bodies.pop(0)
        if version != messages.protocol(tls=tls):
            why = (
                f"it speaks version {version} of the protocol between workers and engine servers, "
                f"and this server version {messages.protocol(tls=tls)}"
            )
            self._refuse(peer, why)
            writer.write(framing.encode(messages.Refused(why)))
            return None
        hello = messages.decode_to_engine(first)
        assert isinstance(hello, messages.Hello)
        worker = hello.worker[:100] or peer
        if tls:
            return _Greeted(worker, bodies)
        challenge = messages.Challenge(greeting.nonce())
        ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        known = greeting.Greeting(self._token, hello.nonce, challenge.nonce, *ends)
        writer.write(framing.encode(challenge))
        bodies = bodies or await next_frames(reader, frames)
        answer = messages.decode_to_engine(bodies.pop(0))
        if len(hello.nonce) != greeting.NONCE_BYTES or not isinstance(answer, messages.Proof):
            raise framing.FrameError("no proof")
        if not known.proves("worker", answer.proof):
            self._refuse(peer, "its token is another one, or its messages have come over somebody else's connection")
            return None
        return _Greeted(worker, bodies, known.proof("server"))

    async def _talk(
        self, greeted: _Greeted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: framing.Frames
    ) -> None:
        worker = greeted.worker
        loop = asyncio.get_running_loop()
        session = WorkerSession(
            next(self._numbers),
            worker,
            self._recognizer,
            lambda waited_s: on_answer(waited_s),
            on_final=self._on_final,
            clock=loop.time,
        )
        connection = WorkerConnection(session, writer, self.counters, self.load)

        def on_answer(waited_s: float | None) -> None:
            if waited_s is not None:
                self._delay.record(waited_s, loop.time())
            if self.draining and not len(session):
                self._emptied.set()
            connection.send_soon()

        self._connections.add(connection)
        self.counters.connections += 1
        log.info("worker connected", worker=worker)
        try:
            writer.write(framing.encode(self._welcome(greeted.proof)))  # before anything else
            self._begin(connection)
            for body in greeted.more:
                session.receive(messages.decode_to_engine(body))
            while data := await reader.read(RECEIVE_BYTES):
                connection.heard_s = loop.time()
                for body in frames.feed(data):
                    session.receive(messages.decode_to_engine(body))
                if self.draining and not len(session):
                    self._emptied.set()
        except (ProtocolError, framing.FrameError) as error:
            self.counters.violations += 1
            log.error("worker cut off", worker=worker, reason=str(error))
            connection.close(messages.Refused(str(error)))
        except OSError:
            pass
        finally:
            self._connections.discard(connection)
            session.close()
            self._emptied.set()
            self._recognizer.keep_alive(bool(self._connections))
            log.info("worker gone", worker=worker)

    def _welcome(self, proof: bytes) -> messages.Welcome:
        recognizer, version = self._recognizer, messages.protocol(tls=self._context is not None)
        return messages.Welcome(version, self._name, recognizer.engine, recognizer.model, recognizer.languages, proof)

    def _begin(self, connection: WorkerConnection) -> None:
        recognizer = self._recognizer
        recognizer.keep_alive(True)
        connection.send()
        if recognizer.state is EngineStatus.READY:
            connection.send(self._ready())
            connection.ready = True
        elif recognizer.state is EngineStatus.FAILED:
            connection.close(messages.EngineFailed(recognizer.trouble or "the recognition engine does not start"))

    def _refuse(self, peer: str, why: str) -> None:
        self.counters.refused += 1
        if (count := self._limit.due((peer, why), asyncio.get_running_loop().time())) is not None:
            log.warning("a connection to the engine was not let in", peer=peer, reason=why, others=count)

    def _tell_again(self) -> None:
        loop = asyncio.get_running_loop()
        self._tell = loop.call_later(TELL_S, self._tell_again)
        for connection in list(self._connections):
            if loop.time() - connection.heard_s >= SILENCE_S:
                log.warning("worker cut off: it says nothing any more", worker=connection.session.worker)
                connection.abort()
            else:
                connection.send()

    def _close_port(self) -> None:
        self.draining = True
        if self._accepting is not None and self._socket is not None:
            self._accepting.cancel()
            self._socket.close()
