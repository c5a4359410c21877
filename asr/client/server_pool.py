"""The engine servers that `asr.servers` names: each name is resolved again and again, to as many servers as it has
addresses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import replace
from functools import partial

import structlog

from asr import messages
from asr.client.engine_health import AWAY_S, Reconnects
from asr.client.engine_server import EngineServer, Watcher
from asr.client.link_shell import EngineConnection, LinkShell, ServerAddress
from asr.client.tasks import Tasks
from asr.greeting import key_of
from asr.utterance import EngineStatus
from config.addresses import bracketed, parse_tcp
from config.certificates import NO_ROLE, client_context, has_role
from config.settings import Settings
from config.tasks import again_and_again

RESOLVE_S = 10.0
"""How often names are resolved again while the servers are wanted."""
RETRY_S = 1.0
"""The same, while a name has no address."""

log = structlog.get_logger("asr")


class ServerPool:
    """The engines of `asr.client.engines.Engines`, where they are elsewhere: see also `local_pool.LocalPool`."""

    def __init__(self, settings: Settings, watcher: Watcher) -> None:
        self._settings, self._watcher = settings, watcher
        self._servers: dict[ServerAddress, EngineServer] = {}
        self._running: dict[ServerAddress, asyncio.Task[None]] = {}
        self._tasks = Tasks()
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        """The settings name other servers."""
        self._idle_reason = ""
        self.words: tuple[str, ...] = ()
        self.missing = "their names have not been resolved yet"
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        """In the logs of servers."""
        self._token = settings.cluster.token.reveal()
        if self._token:
            key_of(self._token)  # now, and not while calls go on

    @property
    def _welcomes(self) -> list[messages.Welcome]:
        return [server.welcome for server in self._servers.values() if server.welcome is not None]

    @property
    def engine(self) -> str:
        """Of several different ones the first."""
        named = self._settings.asr.engine
        return named if named != "auto" else next((each.engine for each in self._welcomes), "")

    @property
    def model(self) -> str:
        return next((each.model for each in self._welcomes), "")

    @property
    def languages(self) -> tuple[str, ...]:
        """Of all together."""
        return tuple(dict.fromkeys(code for each in self._welcomes for code in each.languages))

    @property
    def preloads(self) -> bool:
        """A connection costs nothing, and only who is connected knows whether calls can be taken."""
        return self._settings.asr.preload is not False

    @property
    def lacking(self) -> str | None:
        return None

    @property
    def reason(self) -> str:
        return f"asr.servers: {', '.join(self._settings.asr.servers)}"

    @property
    def servers(self) -> list[EngineServer]:
        return list(self._servers.values())

    @property
    def all(self) -> list[EngineServer]:
        return self.servers

    def start(self, idle_reason: str) -> None:
        self._idle_reason = idle_reason
        log.info("engine servers", reason=self.reason)
        if certificate := self._settings.cluster.tls_cert:
            with contextlib.suppress(OSError, ValueError):  # which each connection has as its reason
                if not has_role(certificate):
                    log.warning(NO_ROLE)
        self._tasks.start(again_and_again(self._resolve_again_and_again, "asr-servers"), "asr-servers")

    async def stop(self) -> None:
        await self._tasks.stop()

    def want(self) -> None:
        self._wanted.set()
        for server in self._servers.values():
            server.want()

    def rest(self) -> None:
        self._wanted.clear()
        for server in self._servers.values():
            server.rest()

    def on_ready(self, ready: messages.EngineReady) -> None:
        self.words = tuple(dict.fromkeys((*self.words, *ready.words)))

    def check(self, settings: Settings) -> None:
        if settings.cluster.tls_cert:
            client_context(settings.cluster)

    def use(self, settings: Settings) -> None:
        """Connect to servers that are new in `asr.servers`, and let go of those that are gone from it once they have
        answered what they have."""
        before, self._settings = self._settings.asr.servers, settings
        if settings.asr.servers == before:
            return
        self._changed.set()
        kept = set(map(parse_tcp, settings.asr.servers))
        for address in [each for each in self._servers if (each.name, each.port) not in kept]:
            self._tasks.start(self._leave(address), "asr-server-leave")

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
                self._watcher.on_state(self.missing, self.missing)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self.missing else RESOLVE_S):
                    await self._changed.wait()

    async def _resolve(self) -> None:
        missing = ""
        for name, port in map(parse_tcp, self._settings.asr.servers):
            try:
                found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
            except OSError as error:
                missing = f"{name} cannot be resolved ({error.strerror or error})"
                continue
            tls = bool(self._settings.cluster.tls_cert)
            addresses = {ServerAddress(str(each[4][0]), port, name, tls) for each in found}
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
        self._servers[address] = server = EngineServer(
            f"{bracketed(address.host)}:{address.port}" + (f"/{address.engine}" if address.engine else ""),
            "engine server",
            lambda server: self._begin(address, server),
            self._watcher,
            Reconnects(),
            shared=True,
        )
        run = again_and_again(partial(server.run, self._idle_reason), f"engine server {server.name}")
        self._running[address] = self._tasks.start(run, f"asr-server-{server.name}")
        if self._wanted.is_set():
            server.want()

    def _forget(self, gone: list[ServerAddress]) -> None:
        """A name server may show some of a name's addresses only, so one that is gone is kept while it answers."""
        for address in gone:
            if self._servers[address].state is not EngineStatus.READY:
                self._remove(address)

    async def _leave(self, address: ServerAddress) -> None:
        await self._servers[address].drain()
        if address in self._servers:
            self._remove(address)

    def _remove(self, address: ServerAddress) -> None:
        server = self._servers.pop(address)
        self._running.pop(address).cancel()
        self._watcher.remove_user(server.user)
        log.info("engine server forgotten", server=server.name)
        self._watcher.on_state(server.reason, server.last_end)

    def _begin(self, address: ServerAddress, server: EngineServer) -> LinkShell:
        return EngineConnection(
            address,
            server,
            worker=self._name,
            token=self._token,
            context=lambda: client_context(self._settings.cluster),
            accepts=lambda welcome: self._on_welcome(address, welcome),
            timeout_s=self._settings.asr.server_timeout_s,
        )

    def _on_welcome(self, address: ServerAddress, welcome: messages.Welcome) -> str:
        """-> why the server is of no use, or "". Each of its inference processes has a connection of its own."""
        first = replace(address, engine=0)
        for engine in range(welcome.engines):
            self._add(replace(first, engine=engine))
        fewer = [each for each in self._servers if replace(each, engine=0) == first and each.engine >= welcome.engines]
        self._forget(fewer)
        return self._why_not(welcome)

    def _why_not(self, welcome: messages.Welcome) -> str:
        """Why a server is of no use: its engine is not the one that the settings ask for."""
        asr = self._settings.asr
        if asr.engine not in ("auto", welcome.engine):
            return f"its engine is {welcome.engine}, and asr.engine asks for {asr.engine}"
        if asr.engine == "qwen" and asr.model != welcome.model:
            return f"its model is {welcome.model}, and asr.model asks for {asr.model}"
        return ""
