"""One engine server of those behind the recognizer, over all its lives: begun, begun again when it dies, renewed.

A server is a process of this machine (`asr.client.local_pool`) or one elsewhere, to which this worker is connected
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
"""How long a process that is to be replaced may take for the utterances that it has, while others take the new ones."""
RECEIVE_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 256 * 1024
"""The most that the transport holds; further audio waits in the utterances themselves."""

log = structlog.get_logger("asr")


class EngineUser(Protocol):
    """What an engine server works for: a worker's own utterances, or the workers that are connected to this one."""

    @property
    def legs(self) -> int:
        """How many have their place at this server."""

    @property
    def open_utterances(self) -> int: ...

    @property
    def to_blame(self) -> bool:
        """Whether the engine is working on an utterance that is still open."""

    def next_message(self) -> messages.ToEngine | None:
        """The next message to the engine; it counts as sent. None until `wake` is called."""

    def on_ready(self) -> None:
        """The engine takes utterances from now on."""

    def on_message(self, message: messages.FromEngine) -> None:
        """The engine has sent a message that is not about its own life."""

    def end_taking(self, *, replaced: bool) -> None:
        """The engine takes no further utterances. `replaced`: its successor takes them already."""

    def on_death(self, reason: str, *, failed: bool) -> None:
        """The engine has died over what it was working on. `failed`: the next one is not expected to live."""

    def on_end(self) -> None:
        """The engine has ended because it was asked to."""


class EngineOwner(ABC):
    """Whose the servers are, which says when they are wanted: `asr.client.engines.Engines`."""

    relays = False
    """Whether the servers work for workers that are relayed for."""

    counters: RecognizerCounters

    @property
    @abstractmethod
    def needed(self) -> bool:
        """Whether calls, jobs or utterances are open."""

    @abstractmethod
    def add_user(self, server: EngineServer, *, shared: bool) -> EngineUser:
        """For one more server, of which `wake` is called when there may be something to send, or nothing any more.
        `shared`: other workers use it as well."""

    @abstractmethod
    def remove_user(self, user: EngineUser) -> None:
        """Its server is gone for good."""

    @abstractmethod
    def on_ready(self, ready: messages.EngineReady) -> None:
        """A server is ready."""

    @abstractmethod
    def on_state(self, reason: str, last_end: str) -> None:
        """A server has entered another state for this reason. `last_end`: why its last life ended."""


class EngineServer(ABC):
    """See the module.

    Args:
        name: in the log, in metrics and in `/readyz`.
        restarts: when it is begun again, and when it counts as failed.
        shared: other workers use it as well.
    """

    kind = ""
    """A noun for it in logs, warnings and `/readyz`."""

    def __init__(self, name: str, engines: EngineOwner, restarts: RestartPolicy, *, shared: bool = False) -> None:
        self.name = name
        self.state = EngineStatus.IDLE
        self.reason = ""
        """Why it is in this state."""
        self.last_end = ""
        """Why its last life ended, if nobody had asked it to."""
        self.runtime: Runtime | None = None
        """Where its latest ready engine computes."""
        self.planned_device = ""
        self.engine = ""
        """Its latest ready engine."""
        self.welcome: messages.Welcome | None = None
        """The greeting of a server elsewhere: its engine, model and languages."""
        self.pid: int | None = None
        """The process id, while there is a process of this machine."""
        self.link: EngineLink | None = None
        """The link of the newest life, which may have ended."""
        self.running: asyncio.Task[None] | None = None
        """What goes on over its lives."""
        self.user = engines.add_user(self, shared=shared)
        self._engines, self._restarts = engines, restarts
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        """Set when there may be something to send, or the link is to end."""
        self._settled = asyncio.Event()
        """Set when its life is ready, or will not be, or none is wanted."""
        self._emptied = asyncio.Event()
        """Set when it has no utterance left."""

    @property
    def device(self) -> str:
        """Where it computes; until it is ready, where it is to."""
        return self.runtime.device if self.runtime is not None else self.planned_device

    def wake(self) -> None:
        """There may be something to send, or nothing any more."""
        if not self.user.open_utterances:
            self._emptied.set()
        self._changed.set()

    @property
    def wanted(self) -> bool:
        return self._wanted.is_set()

    def want(self) -> None:
        """Begin, and go on until `rest`."""
        if not self._wanted.is_set():
            self._settled.clear()
        self._wanted.set()

    def rest(self) -> None:
        """Let its life end, and begin no other."""
        self._wanted.clear()
        self._retire()

    async def ready(self) -> bool:
        """Wait until it is ready, or will not be: False."""
        await self._settled.wait()
        return self.state is not EngineStatus.FAILED

    async def drain(self, *, replaced: bool = False) -> None:
        """Take no further utterance, and answer those that it has, as long as that takes no more than `DRAIN_S`.
        `replaced`: its successor takes them already."""
        self.user.end_taking(replaced=replaced)
        if self.user.open_utterances:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await self._emptied.wait()

    async def renew(self) -> bool:
        """Replace the process by one that is configured anew, while others take the new utterances. -> `ready`."""
        await self.drain()
        self._settled.clear()
        self._retire()
        return await self.ready()

    def _retire(self) -> None:
        """Let its life end. The utterances that it has go to others, or to the next one."""
        if self.link is not None:
            self.link.retired = True
        self._changed.set()

    # -- its lives --------------------------------------------------------------------------------------------------

    def start(self, idle_reason: str) -> None:
        """Live when it is wanted, until `running` is cancelled. `idle_reason`: why it does not meanwhile."""
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
            except Exception as error:  # nobody would begin it again, and its utterances would wait for ever
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
        """The link of the next life."""

    @abstractmethod
    async def _live(self, link: EngineLink) -> str:
        """Begin the engine's next life, and `exchange` until it ends. -> the reason of its end."""

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
        """Send and receive until there are no more answers. `end` cuts off what has not ended `end_s` after it was
        asked to."""
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
        """Send until it is retired or nothing can be sent any more; then make sure that it ends."""
        try:
            while not link.retired:
                self._changed.clear()
                while data := self._data_to_send(link):
                    writer.write(data)
                    await writer.drain()
                await self._changed.wait()
        except OSError:
            pass  # it has died with unread requests
        except Exception as error:
            log.error("could not send to the engine", exc_info=error)
        # One whose requests are closed ends by itself, unless it hangs.
        writer.close()
        await asyncio.sleep(end_s)
        end()

    def _data_to_send(self, link: EngineLink) -> bytes:
        while link.takes_messages and (message := self.user.next_message()) is not None:
            link.send(message)
        return link.data_to_send()

    async def _receive(self, link: EngineLink, reader: asyncio.StreamReader) -> None:
        """Until the other side closes the link, or is of no use."""
        loop = asyncio.get_running_loop()
        while not link.over:
            try:
                data = await reader.read(RECEIVE_BYTES)
            except OSError:  # it has died with unread requests
                return
            if not data:
                return
            link.receive_data(data, loop.time())
            for message in link.events_received():
                self._on_message(message)
            self._changed.set()

    async def _watch(self, link: EngineLink, end: Callable[[], None]) -> None:
        """End it when it hangs."""
        loop = asyncio.get_running_loop()
        while not link.hung:
            await asyncio.sleep(link.deadline - loop.time())
            link.check(loop.time(), needed=self._engines.needed or self.user.open_utterances > 0)
            self._changed.set()
        end()
