"""One engine server of those behind the recognizer, over all its lives: begun, begun again when it dies, renewed.

A server is a process of this machine (`engine_process`) or one elsewhere, to which this worker is connected
(`engine_connection`). `asr.client.recognizer` decides when servers are wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Protocol

import structlog

from asr import messages
from asr.client.engine_health import Death, RestartPolicy
from asr.client.link_shell import LinkShell
from asr.counters import RecognizerCounters
from asr.engines.interface import described
from asr.runtime import Runtime
from asr.utterance import EngineStatus

log = structlog.get_logger("asr")

DRAIN_S = 10.0
"""How long a process that is to be replaced may take for the utterances that it has, while others take the new ones."""


class EngineUser(Protocol):
    """What an engine server works for: a worker's own utterances, or the workers that are connected to this one."""

    wake: Callable[[], None]
    """Called when there may be something to send, or nothing any more."""
    counters: RecognizerCounters

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

    def on_death(self, reason: str) -> None:
        """The engine has died over what it was working on."""

    def on_end(self) -> None:
        """The engine has ended because it was asked to."""

    def on_failed(self, reason: str) -> None:
        """No engine is to be had, though it is still tried."""


class Watcher(Protocol):
    """Who has the servers: `asr.client.engines.Engines`."""

    @property
    def needed(self) -> bool:
        """Whether calls, jobs or utterances are open."""

    @property
    def relays(self) -> bool:
        """Whether the servers work for workers that are relayed for."""

    def add_user(self, server: EngineServer, *, shared: bool) -> EngineUser:
        """For one more server. `shared`: other workers use it as well."""

    def remove_user(self, user: EngineUser) -> None:
        """Its server is gone for good."""

    def on_state(self, reason: str, last_end: str) -> None:
        """A server has entered another state for this reason. `last_end`: why its last life ended."""

    def on_ready(self, server: EngineServer, ready: messages.EngineReady) -> None: ...

    def deliver(self) -> None:
        """There may be answers for callers."""

    def deliver_soon(self) -> None:
        """The same, from within a call of a caller."""


class EngineServer:
    """See the module.

    Args:
        name: in the log, in metrics and in `/readyz`.
        kind: `inference process` or `engine server`.
        begin: makes its next life.
        restarts: when it is begun again, and when it counts as failed.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        begin: Callable[[EngineServer], LinkShell],
        watcher: Watcher,
        restarts: RestartPolicy,
        *,
        shared: bool = False,
    ) -> None:
        """`shared`: other workers use it as well."""
        self.name, self.kind = name, kind
        self.user = watcher.add_user(self, shared=shared)
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
        """Of a server elsewhere: what it has said of itself."""
        self._begin, self._watcher = begin, watcher
        self._restarts = restarts
        self._wanted = asyncio.Event()
        self._life: LinkShell | None = None
        """The newest; it may have ended."""
        self._settled = asyncio.Event()
        """Set when its life is ready, or will not be, or none is wanted."""
        self._emptied = asyncio.Event()
        """Set when it has no utterance left."""
        self.user.wake = self.wake

    @property
    def device(self) -> str:
        """Where it computes; until it is ready, where it is to."""
        return self.runtime.device if self.runtime is not None else self.planned_device

    @property
    def pid(self) -> int | None:
        """The process id, while there is a process of this machine."""
        return self._life.pid if self._life is not None else None

    def attach(self, attach: messages.Attach, link: socket.socket) -> None:
        """Pass on the end of a link of a worker. Raises OSError."""
        assert self._life is not None
        self._life.attach(attach, link)

    def wake(self) -> None:
        """There may be something to send, or nothing any more."""
        if not self.user.open_utterances:
            self._emptied.set()
        if self._life is not None:
            self._life.wake()

    @property
    def wanted(self) -> bool:
        return self._wanted.is_set()

    @property
    def needed(self) -> bool:
        """Calls or jobs are open, though this server may have no utterance."""
        return self._watcher.needed or self.user.open_utterances > 0

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
        if self._life is not None:
            self._life.retire()

    async def run(self, idle_reason: str) -> None:
        """Until cancelled."""
        restarts = self._restarts
        while True:
            if not self._wanted.is_set():
                self._enter(EngineStatus.IDLE, idle_reason)
            await self._wanted.wait()
            self._life = life = self._begin(self)
            if self.state is not EngineStatus.FAILED:
                self._enter(EngineStatus.WARMING_UP, life.link.beginning)
            try:
                reason = await life.run()
            except Exception as error:  # nobody would begin it again, and its utterances would wait for ever
                log.exception("an engine's life has ended by a fault of ours", server=self.name)
                reason = f"a fault of this worker ({described(error)})"
            self.user.counters.hangs += life.link.hung is not None
            if life.link.retired:
                self.user.on_end()
                restarts.on_retirement()
            else:
                self._on_death(life, reason)
                await asyncio.sleep(restarts.backoff_s)

    def _on_death(self, life: LinkShell, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        hung, unusable = life.link.hung is not None, life.link.unusable is not None
        self._restarts.on_death(Death(life.link.answered, life.link.ready_s, now_s, self.user.to_blame, hung, unusable))
        if life.link.had_engine:
            if life.link.ready_s is not None or reason != self.last_end:
                log.error("engine lost", server=self.name, reason=reason, open_utterances=self.user.open_utterances)
            self.user.on_death(reason)
        elif reason != self.last_end:
            log.warning("engine server not reached", server=self.name, reason=reason)
        self.last_end = reason
        self._watcher.deliver()
        if how_long := self._restarts.failed:
            self._enter(EngineStatus.FAILED, life.link.unusable or f"{reason}, {how_long}")
            self.user.on_failed(self.last_end)
        elif self.state is EngineStatus.READY:
            self._enter(EngineStatus.WARMING_UP, life.link.beginning)

    def next_message(self) -> messages.ToEngine | None:
        """The next message to its life."""
        message = self.user.next_message()
        self._watcher.deliver_soon()  # utterances that could not be read back from the disk have failed
        return message

    def on_message(self, message: messages.FromEngine) -> None:
        """A message from its life."""
        match message:
            case messages.Welcome():
                self.welcome = message
            case messages.EngineReady():
                self._on_ready(message)
                return
        self.user.on_message(message)
        self._watcher.deliver()

    def _on_ready(self, ready: messages.EngineReady) -> None:
        self.runtime, self.engine = ready.runtime, ready.engine
        log.info("engine ready", engine=ready.engine, server=self.name, **ready.runtime.shown())
        for warning in ready.runtime.warnings:
            log.warning(warning, server=self.name)
        self._watcher.on_ready(self, ready)
        self.user.on_ready()
        self._enter(EngineStatus.READY, "")
        self.wake()

    def _enter(self, state: EngineStatus, reason: str) -> None:
        if state is EngineStatus.WARMING_UP:
            self._settled.clear()
        else:
            self._settled.set()
        self.state, self.reason = state, reason
        self._watcher.on_state(reason, self.last_end)
