"""Connects to the engine servers that `asr.servers` names.

Each name is resolved periodically, and each of its addresses is one server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from dataclasses import dataclass, replace

import structlog

from asr import messages
from asr.client.engine_health import AWAY_S, Reconnects
from asr.client.engine_server import EngineOwner, EngineServer
from asr.client.link import EngineLink, RemoteLink
from asr.greeting import key_of
from asr.utterance import EngineStatus
from config import ConfigError
from config.certificates import NO_ROLE, client_context, has_role
from config.network.addresses import bracketed, parse_tcp
from config.process.tasks import end_tasks, lasting
from config.settings import Settings

RESOLVE_S = 10.0
"""The interval at which names are resolved again while the servers are wanted."""
RETRY_S = 1.0
"""The same interval while a name cannot be resolved."""
CLOSE_S = 1.0
"""How long a connection may take to close when it is not needed any more."""

log = structlog.get_logger("asr")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of an engine server, and one of its inference processes."""

    host: str
    """The IP address to which `name` was resolved."""
    port: int
    name: str
    """The host name or IP address, as in the configuration and in the server's certificate."""
    engine: int = 0
    """The number of the inference process; see `messages.Welcome.engines`."""

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}" + (f"/{self.engine}" if self.engine else "")


class RemoteServer(EngineServer):
    """A connection to an inference process of an engine server, over all its lives.

    The connection uses TLS with a certificate on both sides (RFC 8446), or a token on loopback.
    """

    kind = "engine server"

    def __init__(self, address: ServerAddress, pool: ServerPool, engines: EngineOwner) -> None:
        super().__init__(str(address), engines, Reconnects(), shared=True)
        self.address, self._pool = address, pool

    def _new_link(self) -> RemoteLink:
        settings = self._pool.settings
        token = "" if settings.cluster.tls_cert else self._pool.token
        return RemoteLink(settings.asr, worker=self._pool.name, engine=self.address.engine, token=token)

    async def _live(self, link: EngineLink) -> str:
        assert isinstance(link, RemoteLink)
        timeout_s = self._pool.settings.asr.server_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await self._connect(timeout_s)
        except TimeoutError:
            return f"no connection within {timeout_s:g} s"
        except ssl.SSLCertVerificationError as error:
            return f"the server's certificate is not trusted: {error.verify_message}"
        except ConfigError as error:  # a certificate file may be half written while it is being renewed
            return f"no connection ({error})"
        except (OSError, ValueError) as error:
            return f"no connection ({error.strerror or error if isinstance(error, OSError) else error})"
        link.ends = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        try:
            await self.exchange(link, reader, writer, end_s=CLOSE_S, end=writer.transport.abort)
        finally:
            # Over TLS, closing waits for the peer's close_notify (RFC 8446, section 6.1). A peer that hangs or is
            # unreachable never sends it, and the next life must not wait: after `CLOSE_S` the connection is aborted.
            writer.close()
            with contextlib.suppress(OSError):
                async with asyncio.timeout(CLOSE_S):
                    await writer.wait_closed()
            writer.transport.abort()
        return link.end()

    async def _connect(self, timeout_s: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address, cluster = self.address, self._pool.settings.cluster
        if not cluster.tls_cert:
            return await asyncio.open_connection(address.host, address.port)
        # Each connection gets a new context, so that it uses a renewed certificate.
        return await asyncio.open_connection(
            address.host,
            address.port,
            ssl=client_context(cluster),
            server_hostname=address.name,
            ssl_handshake_timeout=timeout_s,
        )

    def _on_message(self, message: messages.FromEngine) -> None:
        super()._on_message(message)
        if isinstance(message, messages.Welcome):
            self._pool.on_welcome(self.address, message)


class ServerPool:
    """The connections to engine servers behind `asr.client.engines.Engines`, which documents the methods; so does
    `local_pool.LocalPool`."""

    def __init__(self, settings: Settings, engines: EngineOwner) -> None:
        self.settings, self._engines = settings, engines
        self._servers: dict[ServerAddress, RemoteServer] = {}
        self._wanted, self._changed = asyncio.Event(), asyncio.Event()
        """`_wanted` is set while engines are wanted, `_changed` when `asr.servers` has changed."""
        self._resolving: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        """The tasks of servers that are being removed."""
        self._idle_reason = ""
        self.words: tuple[str, ...] = ()
        self.missing = "their names have not been resolved yet"
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        """This worker's name in the logs of engine servers."""
        self.token = settings.cluster.token.reveal()
        if self.token:
            key_of(self.token)  # slow and cached: deriving it later would block the event loop during calls

    @property
    def _welcomes(self) -> list[messages.Welcome]:
        return [server.welcome for server in self._servers.values() if server.welcome is not None]

    @property
    def engine(self) -> str:
        """The name of the engine; if the servers differ, the name of the first one's."""
        named = self.settings.asr.engine
        return named if named != "auto" else next((each.engine for each in self._welcomes), "")

    @property
    def model(self) -> str:
        return next((each.model for each in self._welcomes), "")

    @property
    def languages(self) -> tuple[str, ...]:
        """ISO 639 codes of the languages that at least one of the servers supports."""
        return tuple(dict.fromkeys(code for each in self._welcomes for code in each.languages))

    @property
    def preloads(self) -> bool:
        """Whether the worker connects at its start. By default it does: a connection is cheap, and without one the
        worker does not know whether it can serve calls."""
        return self.settings.asr.preload is not False

    @property
    def lacking(self) -> str | None:
        return None

    @property
    def reason(self) -> str:
        return f"asr.servers: {', '.join(self.settings.asr.servers)}"

    @property
    def servers(self) -> list[RemoteServer]:
        return list(self._servers.values())

    @property
    def all(self) -> list[RemoteServer]:
        return self.servers

    def start(self, idle_reason: str) -> None:
        self._idle_reason = idle_reason
        log.info("engine servers", reason=self.reason)
        if certificate := self.settings.cluster.tls_cert:
            with contextlib.suppress(OSError, ValueError):  # each connection reports these as its reason
                if not has_role(certificate):
                    log.warning(NO_ROLE)
        self._resolving = lasting(self._resolve_again_and_again, "asr-servers")

    async def stop(self) -> None:
        await end_tasks(self._resolving, *self._ending, *(server.running for server in self.servers))

    def want(self) -> None:
        self._wanted.set()
        for server in self.servers:
            server.want()

    def rest(self) -> None:
        self._wanted.clear()
        for server in self.servers:
            server.rest()

    def on_ready(self, ready: messages.EngineReady) -> None:
        self.words = tuple(dict.fromkeys((*self.words, *ready.words)))

    def on_welcome(self, address: ServerAddress, welcome: messages.Welcome) -> None:
        """Add or remove connections, so that each inference process of the server has one."""
        first = replace(address, engine=0)
        for engine in range(welcome.engines):
            self._add(replace(first, engine=engine))
        fewer = [each for each in self._servers if replace(each, engine=0) == first and each.engine >= welcome.engines]
        self._forget(fewer)

    def check(self, settings: Settings) -> None:
        if settings.cluster.tls_cert:
            client_context(settings.cluster)

    def use(self, settings: Settings) -> None:
        """Connect to servers that are new in `asr.servers`. Remove those that are no longer in it, once they have
        answered their open utterances."""
        before, self.settings = self.settings.asr.servers, settings
        if settings.asr.servers == before:
            return
        self._changed.set()
        kept = set(map(parse_tcp, settings.asr.servers))
        for server in [each for each in self.servers if (each.address.name, each.address.port) not in kept]:
            self._end(asyncio.create_task(self._leave(server), name="asr-server-leave"))

    async def _resolve_again_and_again(self) -> None:
        since_s = asyncio.get_running_loop().time()
        while True:
            await self._wanted.wait()
            self._changed.clear()
            await self._resolve()
            now_s = asyncio.get_running_loop().time()
            if self._servers:
                since_s = now_s
            elif now_s - since_s >= AWAY_S:
                self._engines.on_state(self.missing, self.missing)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self.missing else RESOLVE_S):
                    await self._changed.wait()

    async def _resolve(self) -> None:
        missing = ""
        for name, port in map(parse_tcp, self.settings.asr.servers):
            try:
                found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
            except OSError as error:
                missing = f"{name} cannot be resolved ({error.strerror or error})"
                continue
            addresses = {ServerAddress(str(each[4][0]), port, name) for each in found}
            for address in addresses:
                self._add(address)
            known = [each for each in self._servers if (each.name, each.port) == (name, port)]
            self._forget([each for each in known if replace(each, engine=0) not in addresses])
        if missing and missing != self.missing:
            log.warning("asr.servers", problem=missing)
        self.missing = missing

    def _add(self, address: ServerAddress) -> None:
        if address in self._servers:
            return
        self._servers[address] = server = RemoteServer(address, self, self._engines)
        server.start(self._idle_reason)
        if self._wanted.is_set():
            server.want()

    def _forget(self, gone: list[ServerAddress]) -> None:
        """Remove servers whose addresses are gone from DNS, except for those that are ready: a name server may return
        only some of a name's addresses."""
        for address in gone:
            if self._servers[address].state is not EngineStatus.READY:
                self._remove(self._servers[address])

    async def _leave(self, server: RemoteServer) -> None:
        await server.drain()
        if self._servers.get(server.address) is server:
            self._remove(server)

    def _remove(self, server: RemoteServer) -> None:
        del self._servers[server.address]
        if server.running is not None:
            server.running.cancel()
            self._end(server.running)
        self._engines.remove_user(server.user)
        log.info("engine server forgotten", server=server.name)
        self._engines.on_state(server.reason, server.last_end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
