"""Starts one engine, restarts it when it dies, and moves the bytes of each of its lives.

A server is a process of this machine (`asr.client.local_pool`), or an engine server to which this worker is connected
(`asr.client.server_pool`). `asr.client.engines.Engines` decides when servers are wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from asr import messages
from asr.client.engine_health import RestartPolicy
from asr.client.link import EngineLink
from asr.counters import RecognizerCounters
from asr.engines.interface import described
from asr.runtime import Runtime
from asr.utterance import EngineStatus
from config.process.tasks import again_and_again, end_tasks

DRAIN_S = 10.0
"""How long a process that will be replaced may finish its utterances, while other processes get the new ones."""
RECEIVE_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 256 * 1024
"""The most that the transport buffers. Further audio stays in its utterances, so that messages of other utterances can
go in between."""

log = structlog.get_logger("asr")


class EngineUser(Protocol):
    """The client of an engine server: a worker's own utterances, or the workers that are connected to this one."""

    @property
    def legs(self) -> int:
        """How many legs are placed at this server."""

    @property
    def open_utterances(self) -> int: ...

    @property
    def to_blame(self) -> bool:
        """Whether the engine is working on an utterance that is still open."""

    def next_message(self) -> messages.ToEngine | None:
        """The next message to the engine; it counts as sent. None until `wake` is called."""

    def on_ready(self) -> None:
        """The engine accepts utterances from now on."""

    def on_message(self, message: messages.FromEngine) -> None:
        """The engine has sent a message that does not concern its own life."""

    def stop_accepting(self, *, replaced: bool) -> None:
        """The engine accepts no further utterances. `replaced`: its successor already accepts them."""

    def on_death(self, reason: str, *, failed: bool) -> None:
        """The engine has died; what it was working on may be the cause. `failed`: the next one is expected to die too,
        so that nobody needs to wait for it."""

    def on_end(self) -> None:
        """The engine has ended on request."""


class EngineOwner(ABC):
    """The owner of the servers, which decides when they are wanted: `asr.client.engines.Engines`."""

    relays = False
    """Whether the servers serve connected workers, whose frames this process relays."""

    counters: RecognizerCounters

    @property
    @abstractmethod
    def needed(self) -> bool:
        """Whether calls, jobs or utterances are open."""

    @abstractmethod
    def add_user(self, server: EngineServer, *, shared: bool) -> EngineUser:
        """Create the user of one more server. The user calls the server's `wake` when there may be something to send,
        and when its last utterance is over. `shared`: other workers use the server as well."""

    @abstractmethod
    def remove_user(self, user: EngineUser) -> None:
        """The server of this user has been removed for good."""

    @abstractmethod
    def on_ready(self, ready: messages.EngineReady) -> None:
        """A server is ready."""

    @abstractmethod
    def on_state(self, reason: str, last_end: str) -> None:
        """A server has entered another state for this reason. `last_end`: why the server's last life ended."""


class EngineServer(ABC):
    """One engine over all its lives. A life begins with the start of a process, or with an attempt to connect.

    Args:
        name: the server's name in the log, in metrics and in `/readyz`.
        restarts: decides when the server is restarted, and when it counts as failed.
        shared: other workers use the server as well.
    """

    kind = ""
    """A noun for the server in logs, warnings and `/readyz`."""

    def __init__(self, name: str, engines: EngineOwner, restarts: RestartPolicy, *, shared: bool = False) -> None:
        self.name = name
        self.state = EngineStatus.IDLE
        self.reason = ""
        """Why the server is in this state."""
        self.last_end = ""
        """Why the engine last died or was not reached; an end on request does not count."""
        self.runtime: Runtime | None = None
        """The device and libraries of the latest engine that was ready."""
        self.planned_device = ""
        self.engine = ""
        """The name of the latest engine that was ready."""
        self.welcome: messages.Welcome | None = None
        """The latest greeting of an engine server: its engine, model and languages. None for a process of this
        machine."""
        self.pid: int | None = None
        """The process id while a process of this machine is running."""
        self.link: EngineLink | None = None
        """The link of the newest life, which may have ended."""
        self.running: asyncio.Task[None] | None = None
        """The task that begins one life after the other."""
        self.user = engines.add_user(self, shared=shared)
        self._engines, self._restarts = engines, restarts
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        """Set when there may be something to send, or when the link must end."""
        self._settled = asyncio.Event()
        """Set while the server is ready, has failed, or is not wanted; cleared while it starts."""
        self._emptied = asyncio.Event()
        """Set when the server has no utterance left."""

    @property
    def device(self) -> str:
        """The device on which the engine runs; until it is ready, the configured one."""
        return self.runtime.device if self.runtime is not None else self.planned_device

    def wake(self) -> None:
        """There may be something to send, or the last utterance is over."""
        if not self.user.open_utterances:
            self._emptied.set()
        self._changed.set()

    @property
    def wanted(self) -> bool:
        return self._wanted.is_set()

    def want(self) -> None:
        """Start the engine and keep it running until `rest`."""
        if not self._wanted.is_set():
            self._settled.clear()
        self._wanted.set()

    def rest(self) -> None:
        """End the present life, and begin no other."""
        self._wanted.clear()
        self._retire()

    async def ready(self) -> bool:
        """Wait until the engine is ready. Returns False if it has failed."""
        await self._settled.wait()
        return self.state is not EngineStatus.FAILED

    async def drain(self, *, replaced: bool = False) -> None:
        """Accept no further utterance, and answer the present ones within `DRAIN_S`. `replaced`: the successor already
        accepts utterances."""
        self.user.stop_accepting(replaced=replaced)
        if self.user.open_utterances:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await self._emptied.wait()

    async def renew(self) -> bool:
        """Replace the process by one with the new configuration, while other processes accept the new utterances.
        Returns whether the new one is ready."""
        await self.drain()
        self._settled.clear()
        self._retire()
        return await self.ready()

    def _retire(self) -> None:
        """End the present life. Its open utterances move to other servers, or to the next life."""
        if self.link is not None:
            self.link.retired = True
        self._changed.set()

    # -- its lives --------------------------------------------------------------------------------------------------

    def start(self, idle_reason: str) -> None:
        """Run an engine whenever one is wanted, until `running` is cancelled. `idle_reason`: the reason shown while
        none is wanted."""
        run = again_and_again(partial(self._run, idle_reason), f"{self.kind} {self.name}")
        self.running = asyncio.create_task(run, name=f"asr-server-{self.name}")

    async def _run(self, idle_reason: str) -> None:
        while True:
            if not self._wanted.is_set():
                self._enter(EngineStatus.IDLE, idle_reason)
            await self._wanted.wait()
            self.link = link = self._new_link()
            if self.state is not EngineStatus.FAILED:
                self._enter(EngineStatus.WARMING_UP, link.beginning)
            try:
                reason = await self._live(link)
            except Exception as error:  # without this, no engine would be started again, and utterances would wait
                log.exception("an engine's life has ended by a fault of ours", server=self.name)
                reason = f"a fault of this worker ({described(error)})"
            self._engines.counters.hangs += link.hung is not None
            if link.retired:
                self.user.on_end()
                self._restarts.on_retirement()
            else:
                self._on_death(link, reason)
                await asyncio.sleep(self._restarts.backoff_s)

    @abstractmethod
    def _new_link(self) -> EngineLink:
        """Create the link of the next life."""

    @abstractmethod
    async def _live(self, link: EngineLink) -> str:
        """Begin the engine's next life, `exchange` until it ends, and return the reason of its end."""

    def _on_death(self, link: EngineLink, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        self._restarts.on_death(link, now_s, blamed=self.user.to_blame)
        if link.had_engine:
            if link.ready_s is not None or reason != self.last_end:
                log.error("engine lost", server=self.name, reason=reason, open_utterances=self.user.open_utterances)
            self.user.on_death(reason, failed=bool(self._restarts.failed))
        elif reason != self.last_end:
            log.warning("engine server not reached", server=self.name, reason=reason)
        self.last_end = reason
        if how_long := self._restarts.failed:
            self._enter(EngineStatus.FAILED, link.unusable or f"{reason}, {how_long}")
        elif self.state is EngineStatus.READY:
            self._enter(EngineStatus.WARMING_UP, link.beginning)

    def _on_message(self, message: messages.FromEngine) -> None:
        match message:
            case messages.EngineReady():
                self._on_ready(message)
                return
            case messages.Welcome():
                self.welcome = message
        self.user.on_message(message)

    def _on_ready(self, ready: messages.EngineReady) -> None:
        self.runtime, self.engine = ready.runtime, ready.engine
        log.info("engine ready", engine=ready.engine, server=self.name, **ready.runtime.shown())
        for warning in ready.runtime.warnings:
            log.warning(warning, server=self.name)
        self._engines.on_ready(ready)
        self.user.on_ready()
        self._enter(EngineStatus.READY, "")
        self.wake()

    def _enter(self, state: EngineStatus, reason: str) -> None:
        if state is EngineStatus.WARMING_UP:
            self._settled.clear()
        else:
            self._settled.set()
        self.state, self.reason = state, reason
        self._engines.on_state(reason, self.last_end)

    # -- the bytes of a life ----------------------------------------------------------------------------------------

    async def exchange(
        self, link: EngineLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, end_s: float,
        end: Callable[[], None],
    ) -> None:  # fmt: skip
        """Send and receive until the other side has closed its end. `end` kills a life that has not ended by itself
        within `end_s` of being asked to.

        Only the end of the received bytes ends a life. A process that has died may have written answers that are still
        in the socket's buffer, and they count: a final that was written is not requested again, and the last `Working`
        decides which utterances are blamed.
        """
        link.begin(asyncio.get_running_loop().time())
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        sender = asyncio.create_task(self._send(link, writer, end_s, end), name="asr-sender")
        watcher = asyncio.create_task(self._watch(link, end), name="asr-watcher")
        try:
            await self._receive(link, reader)
        finally:
            await end_tasks(sender, watcher)

    async def _send(
        self, link: EngineLink, writer: asyncio.StreamWriter, end_s: float, end: Callable[[], None]
    ) -> None:
        """Send until the link is retired or sending fails. Then close the sending side, and kill a life that does not
        end by itself."""
        try:
            while not link.retired:
                self._changed.clear()
                while data := self._data_to_send(link):
                    writer.write(data)
                    await writer.drain()
                await self._changed.wait()
        except OSError:
            pass  # the process has died with unread requests; `_receive` still reads its answers to the end
        except Exception as error:
            log.error("could not send to the engine", exc_info=error)
        # The order matters: closing the requests lets the process end by itself, with all answers written. Only one
        # that hangs is killed, after `end_s`.
        writer.close()
        await asyncio.sleep(end_s)
        end()

    def _data_to_send(self, link: EngineLink) -> bytes:
        while link.accepts_messages and (message := self.user.next_message()) is not None:
            link.send(message)
        return link.data_to_send()

    async def _receive(self, link: EngineLink, reader: asyncio.StreamReader) -> None:
        """Receive until the other side closes the link, or the link is of no use any more."""
        loop = asyncio.get_running_loop()
        while not link.over:
            try:
                data = await reader.read(RECEIVE_BYTES)
            except OSError:  # the process has died with unread requests
                return
            if not data:
                return
            link.receive_data(data, loop.time())
            for message in link.events_received():
                self._on_message(message)
            self._changed.set()

    async def _watch(self, link: EngineLink, end: Callable[[], None]) -> None:
        """Check for signs of life, and kill a process that hangs."""
        loop = asyncio.get_running_loop()
        while not link.hung:
            await asyncio.sleep(link.deadline - loop.time())
            link.check(loop.time(), needed=self._engines.needed or self.user.open_utterances > 0)
            self._changed.set()
        end()
