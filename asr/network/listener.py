"""The port of an engine server: it accepts workers, authenticates them by certificate or token, and relays for them.

A peer that cannot authenticate itself gets no information. An authenticated worker that sends invalid messages is sent
the reason and cut off; the other workers are not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections import Counter
from functools import partial

import structlog

from asr import greeting, messages
from asr.network.relay import RECEIVE_BYTES, ServedEngines, WorkerConnection
from config.log.rate_limit import LogRateLimit
from config.metrics.registry import MetricsRegistry
from config.network.addresses import bound_tcp, peer_key
from config.process import framing
from config.process.tasks import end_tasks, lasting

MAX_GREETING, MAX_WORKERS = 64, 1000
"""The most connections that have not completed the greeting yet, and the most workers."""
MAX_GREETING_OF_ADDRESS = 16
"""The most connections from one address or IPv6 /64 that have not completed the greeting yet. If many workers behind
one address connect at once, some are refused and retry."""
SILENCE_S = 60.0
"""A worker that has sent nothing for this long is taken for dead: a live one pings more often."""
CHECK_S = 1.0
"""The interval at which connections are checked, and the delay after a failed accept."""
HELLO_S = 5.0
"""The timeout for the TLS handshake and the greeting together."""
END_S = 2.0
"""How long `stop` waits for workers to read their last answers."""

log = structlog.get_logger("asr")


class EngineListener:
    """The listening socket, and one task for each connection.

    Args:
        engines: the engines that the workers use.
        address: the host and port to bind; port 0 binds any free one.
        name: the name of this server, for the logs of workers.
        context: the server's side of TLS; None where workers prove that they know `token` instead.
        token: the secret shared with the workers; empty with TLS.
    """

    def __init__(
        self,
        engines: ServedEngines,
        address: tuple[str, int],
        *,
        name: str,
        context: ssl.SSLContext | None,
        token: str,
    ) -> None:
        assert context is not None or token, "an engine server needs a certificate or a token"
        self.counters = engines.listener_counters
        self.port = address[1]
        """The port bound, once started."""
        self._engines, self._address, self._name = engines, address, name
        self._context, self._token = context, token
        if token:
            greeting.key_of(token)  # slow and cached: deriving it later would block the event loop during calls
        self._numbers = itertools.count(1)
        self._socket: socket.socket | None = None
        self._lasting: list[asyncio.Task[None]] = []
        self._serving: set[asyncio.Task[None]] = set()
        """The tasks of all connections."""
        self._greeting: dict[asyncio.Task[None], str] = {}
        """The task of each connection that has not completed the greeting, oldest first → the peer's network."""
        self.draining = False
        """Whether the port has been closed because the server is about to end."""
        self._limit = LogRateLimit()

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counters("engine_server", self.counters)
        metrics.gauge(
            "engine_server_workers",
            "Shows how many workers are connected to this engine server.",
            lambda: self._engines.workers,
        )
        metrics.gauge(
            "engine_server_legs",
            "Shows how many legs of calls have their place at this engine server.",
            lambda: self._engines.legs,
        )
        metrics.gauge(
            "engine_server_files",
            "Shows how many utterances of files this engine server has.",
            lambda: self._engines.files,
        )
        metrics.gauge(
            "engine_server_delay_seconds",
            "Shows how long requests of calls have lately waited before the engine began with them.",
            lambda: self._engines.delay_ms / 1000,
        )

    async def start(self) -> None:
        """Bind the port and accept connections. Raises OSError if the port cannot be bound."""
        self._socket = bound_tcp(*self._address)
        self.port = self._socket.getsockname()[1]
        accept = partial(self._accept, self._socket)
        self._lasting = [lasting(accept, "asr-listener"), lasting(self._check, "asr-listener-check")]

    async def drain(self, within_s: float) -> None:
        """Close the port, ask the workers to open no more utterances, and answer the open ones for up to `within_s`."""
        await self._close_port()
        for connection in self._engines.connections:
            connection.send(messages.Draining())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._engines.open_utterances:
                    self._engines.emptied.clear()
                    await self._engines.emptied.wait()

    async def stop(self) -> None:
        """Close the port and all connections. Workers get up to `END_S` to read their last answers."""
        # The order matters: no connection may be added after `end` was called for all, and each must have been sent its
        # last answers before its task is cancelled.
        await self._close_port()
        await end_tasks(*self._lasting, *self._greeting)
        for connection in self._engines.connections:
            connection.end()
        if self._serving:
            await asyncio.wait(self._serving, timeout=END_S)
        await end_tasks(*self._serving)

    # -- a connection -----------------------------------------------------------------------------------------------

    async def _accept(self, port: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(port)
            except OSError as error:  # no file descriptor is free at the moment
                log.error("no connection can be accepted", reason=error.strerror or str(error))
                await asyncio.sleep(CHECK_S)
                continue
            peer = address[0]
            if len(self._engines.connections) >= MAX_WORKERS:
                accepted.close()
                self._refuse(peer, "there are too many connections")
                continue
            self._make_room(network := peer_key(peer))
            serving = asyncio.create_task(self._serve(accepted, peer), name="asr-worker")
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)
            self._greeting[serving] = network

    def _make_room(self, network: str) -> None:
        """Make room for one more greeting by cancelling the oldest one, if there are too many.

        A worker greets at once, so the oldest connection is the least likely to be one. The network with the most
        greetings loses one first, so that a peer with many silent connections cannot keep workers out.
        """
        of_each = Counter(self._greeting.values())
        if of_each[network] >= MAX_GREETING_OF_ADDRESS:
            crowded, whose = network, " of this address"
        elif of_each.total() >= MAX_GREETING:
            crowded, whose = of_each.most_common(1)[0][0], ""
        else:
            return
        oldest = next(task for task, other in self._greeting.items() if other == crowded)
        del self._greeting[oldest]
        oldest.cancel()
        self._refuse(crowded, f"it has not greeted, and there are too many connections{whose}")

    async def _serve(self, accepted: socket.socket, peer: str) -> None:
        writer, connection = None, None
        try:
            try:
                async with asyncio.timeout(HELLO_S):
                    reader, writer = await _opened(accepted, self._context)
                    connection = await self._greet(reader, writer, peer)
            except ssl.SSLError as error:
                self._refuse(peer, f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}")
            except (OSError, TimeoutError, EOFError, framing.FrameError):
                self._refuse(peer, "it has not greeted")
            finally:
                if (task := asyncio.current_task()) is not None:
                    self._greeting.pop(task, None)
            if connection is not None:
                await self._relay(connection)
        except Exception:
            log.exception("a worker is cut off by a fault of ours", peer=peer)
        finally:
            if writer is None:
                accepted.close()
            else:
                writer.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> WorkerConnection | None:
        """Authenticate a worker and return its connection; None if it is refused. Raises EOFError, FrameError."""
        tls = self._context is not None
        # With TLS the peer is already authenticated, and may send longer frames right behind its greeting.
        frames = framing.Frames(framing.MAX_FRAME_BYTES if tls else greeting.MAX_BYTES)
        bodies = await _next_frames(reader, frames)
        version, first = messages.decode_hello(bodies[0]).version, bodies.pop(0)
        if version != messages.protocol(tls=tls):
            why = (
                f"it speaks version {version} of the protocol between workers and engine servers, "
                f"and this server version {messages.protocol(tls=tls)}"
            )
            self._refuse(peer, why, writer)
            return None
        hello = messages.decode_to_engine(first)
        assert isinstance(hello, messages.WorkerHello)
        if (relay := self._engines.relay(hello.engine)) is None:
            why = f"it asks for engine {hello.engine}, and this server has {len(self._engines.servers)}"
            self._refuse(peer, why, writer)
            return None
        proof = b""
        if not tls:
            challenge = messages.Challenge(greeting.nonce())
            ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
            known = greeting.Greeting(self._token, hello.nonce, challenge.nonce, *ends)
            writer.write(framing.encode(challenge))
            bodies = bodies or await _next_frames(reader, frames)
            answer = messages.decode_to_engine(bodies.pop(0))
            if len(hello.nonce) != greeting.NONCE_BYTES or not isinstance(answer, messages.Proof):
                raise framing.FrameError("no proof")
            if not known.proves("worker", answer.proof):
                why = "its token is another one, or its messages were relayed from another connection"
                self._refuse(peer, why)
                return None
            proof = known.proof("server")
        frames.limit = framing.MAX_FRAME_BYTES
        connection = WorkerConnection(next(self._numbers), hello.worker[:100] or peer, relay, reader, writer, frames)
        connection.send(self._welcome(proof))  # it must be the first message: without TLS, a worker rejects others
        connection.early = bodies
        return connection

    async def _relay(self, connection: WorkerConnection) -> None:
        """Relay for the worker until it is gone."""
        self.counters.connections += 1
        log.info("worker connected", worker=connection.worker)
        try:
            self._engines.keep_alive(True)
            connection.relay.add(connection)
            await connection.relay_requests()
        except framing.FrameError as error:
            self._engines.on_cut_off(connection, str(error))
            connection.send(messages.Refused(str(error)))
        except OSError:
            pass
        finally:
            connection.relay.remove(connection)
            self._engines.keep_alive(bool(self._engines.connections))
            log.info("worker gone", worker=connection.worker)

    def _welcome(self, proof: bytes) -> messages.Welcome:
        engines, version = self._engines, messages.protocol(tls=self._context is not None)
        return messages.Welcome(
            version, self._name, engines.engine, engines.model, engines.languages, proof, len(engines.servers)
        )

    def _refuse(self, peer: str, why: str, writer: asyncio.StreamWriter | None = None) -> None:
        """Count and log a refused connection. `writer`: the peer's, if it may be sent the reason."""
        self.counters.refused += 1
        if (count := self._limit.due((peer, why), asyncio.get_running_loop().time())) is not None:
            log.warning("a connection to the engine was not let in", peer=peer, reason=why, others=count)
        if writer is not None:
            writer.write(framing.encode(messages.Refused(why)))

    async def _check(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_S)
            for connection in self._engines.connections:
                if loop.time() - connection.received_s >= SILENCE_S:
                    log.warning("worker cut off: it has stopped sending", worker=connection.worker)
                    connection.abort()
                else:
                    connection.check()

    async def _close_port(self) -> None:
        self.draining = True
        if self._socket is not None and self._lasting:
            await end_tasks(self._lasting[0])
            self._socket.close()


async def _opened(
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


async def _next_frames(reader: asyncio.StreamReader, frames: framing.Frames) -> list[bytes]:
    """Read until there is at least one whole frame. Raises EOFError, FrameError."""
    while not (bodies := frames.feed(await reader.read(RECEIVE_BYTES))):
        if reader.at_eof():
            raise EOFError
    return bodies
