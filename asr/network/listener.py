"""The port of an engine server: workers connect, show a certificate or a token, and have their speech recognised.

Whoever is not let in is told nothing. A worker that makes no sense is told why and cut off; the others notice nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from asr import messages
from asr.client.recognizer import Recognizer
from asr.client.servers.tasks import Tasks
from asr.network.connection import (
    HELLO_S,
    RECEIVE_BYTES,
    Delay,
    ListenerCounters,
    WorkerConnection,
    first_frames,
    opened,
)
from asr.network.session import AnsweredFinal, ProtocolError, WorkerSession
from asr.utterance import EngineStatus
from config import framing
from config.addresses import bound_tcp
from config.log_rate_limit import LogRateLimit
from config.tasks import again_and_again

MAX_GREETING, MAX_WORKERS = 64, 1000
"""Connections that have not greeted yet, and workers."""
MAX_GREETING_OF_ADDRESS = 16
"""Of one address, so that a stranger who says nothing does not keep the workers out. Many workers behind one address
that come at once try again."""
SILENCE_S = 60.0
"""A worker that has said nothing for so long is gone: it pings more often than that."""
TELL_S = 1.0
"""How often a change of the load is told to a worker that gets no answers."""

log = structlog.get_logger("asr")


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
        self._on_final = on_final
        self._numbers = itertools.count(1)
        self._connections: set[WorkerConnection] = set()
        self._delay = Delay()
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self._greeting: Counter[str] = Counter()
        """Connections that have not greeted yet, by their address."""
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
            full = self._greeting.total() >= MAX_GREETING or len(self._connections) >= MAX_WORKERS
            if full or self._greeting[peer] >= MAX_GREETING_OF_ADDRESS:
                accepted.close()
                self._refuse(peer, f"there are too many connections{'' if full else ' of this address'}")
                continue
            self._greeting[peer] += 1
            self._tasks.start(self._serve(accepted, peer), "asr-worker")

    async def _serve(self, accepted: socket.socket, peer: str) -> None:
        writer, greeted = None, None
        try:
            async with asyncio.timeout(HELLO_S):
                reader, writer = await opened(accepted, self._context)
                frames = framing.Frames()
                first = await first_frames(reader, frames)
            greeted = self._greet(first, peer, writer)
        except ssl.SSLError as error:
            self._refuse(peer, f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}")
        except (OSError, TimeoutError, EOFError, framing.FrameError):
            self._refuse(peer, "it has not greeted")
        finally:
            self._greeting[peer] -= 1
            if not self._greeting[peer]:
                del self._greeting[peer]
            if writer is None:
                accepted.close()
        if writer is None:
            return
        try:
            if greeted is not None:
                await self._talk(greeted, first[1:], reader, writer, frames)
        finally:
            writer.close()

    def _greet(self, first: list[bytes], peer: str, writer: asyncio.StreamWriter) -> str | None:
        """-> the worker's name, if it is let in. Raises FrameError."""
        version = messages.decode_version(first[0])
        hello = messages.decode_to_engine(first[0]) if version == messages.PROTOCOL else messages.Hello(version)
        assert isinstance(hello, messages.Hello)
        if self._context is None and version == messages.PROTOCOL and not _equal(hello.token, self._token):
            self._refuse(peer, "its token is another one")
            return None
        if version != messages.PROTOCOL:
            why = (
                f"it speaks version {version} of the protocol between workers and engine servers, "
                f"and this server version {messages.PROTOCOL}"
            )
            self._refuse(peer, why)
            writer.write(framing.encode(messages.Refused(why)))
            return None
        return hello.worker[:100] or peer

    async def _talk(
        self,
        worker: str,
        first: Iterable[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        frames: framing.Frames,
    ) -> None:
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
            self._welcome(connection)
            for body in first:
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

    def _welcome(self, connection: WorkerConnection) -> None:
        recognizer = self._recognizer
        recognizer.keep_alive(True)
        welcome = messages.Welcome(
            messages.PROTOCOL, self._name, recognizer.engine, recognizer.model, recognizer.languages
        )
        connection.send(welcome)
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


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))
