"""One engine server of those behind the recognizer, over all its lives: begun, begun again when it dies, renewed.

A server is a process of this machine (`engine_process`) or one elsewhere, to which this worker is connected
(`engine_connection`). `asr.client.recognizer` decides when servers are wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

import structlog

from asr import messages
from asr.client.outstanding import OutstandingWork
from asr.client.send_queue import SendQueue
from asr.client.servers.engine_health import Death, RestartPolicy
from asr.client.servers.engine_life import EngineLife
from asr.engines.interface import described
from asr.engines.runtime import Runtime
from asr.utterance import EngineStatus

log = structlog.get_logger("asr")

DRAIN_S = 10.0
"""How long a process that is to be replaced may take for the utterances that it has, while others take the new ones."""


class Watcher(Protocol):
    """Who is told of what happens to a server: the recognizer."""

    @property
    def needed(self) -> bool:
        """Whether calls, jobs or utterances are open."""

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
        queue: what it is sent.
        restarts: when it is begun again, and when it counts as failed.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        begin: Callable[[EngineServer], EngineLife],
        work: OutstandingWork,
        queue: SendQueue,
        watcher: Watcher,
        restarts: RestartPolicy,
    ) -> None:
        self.name, self.kind = name, kind
        self.queue = queue
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
        self._begin, self._work, self._watcher = begin, work, watcher
        self._restarts = restarts
        self._wanted = asyncio.Event()
        self._life: EngineLife | None = None
        """The newest; it may have ended."""
        self._settled = asyncio.Event()
        """Set when its life is ready, or will not be, or none is wanted."""
        self._emptied = asyncio.Event()
        """Set when it has no utterance left."""
        queue.wake = self.wake

    @property
    def device(self) -> str:
        """Where it computes; until it is ready, where it is to."""
        return self.runtime.device if self.runtime is not None else self.planned_device

    @property
    def pid(self) -> int | None:
        """The process id, while there is a process of this machine."""
        return self._life.pid if self._life is not None else None

    def wake(self) -> None:
        """There may be something to send, or nothing any more."""
        if not self.queue.utterances:
            self._emptied.set()
        if self._life is not None:
            self._life.wake()

    @property
    def wanted(self) -> bool:
        return self._wanted.is_set()

    @property
    def needed(self) -> bool:
        """Calls or jobs are open, though this server may have no utterance."""
        return self._watcher.needed or len(self.queue.utterances) > 0

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

    async def drain(self) -> None:
        """Take no further utterance, and answer those that it has, as long as that takes no more than `DRAIN_S`."""
        self.queue.available = False
        if self.queue.utterances:
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
                self._enter(EngineStatus.WARMING_UP, life.beginning)
            try:
                reason = await life.run()
            except Exception as error:  # nobody would begin it again, and its utterances would wait for ever
                log.exception("an engine's life has ended by a fault of ours", server=self.name)
                reason = f"a fault of this worker ({described(error)})"
            self._work.counters.hangs += life.hung is not None
            self.queue.available = False
            if life.retired:
                self._work.forget_process(self.queue)
                restarts.on_retirement()
            else:
                self._on_death(life, reason)
                await asyncio.sleep(restarts.backoff_s)

    def _on_death(self, life: EngineLife, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        blamed = any(name in self._work for name in self.queue.working)
        hung, unusable = life.hung is not None, life.unusable is not None
        self._restarts.on_death(Death(life.answered, life.ready_s, now_s, blamed, hung, unusable))
        if life.had_engine:
            if life.ready_s is not None or reason != self.last_end:
                log.error("engine lost", server=self.name, reason=reason, open_utterances=len(self.queue.utterances))
            self._work.on_death(self.queue, reason)
        elif reason != self.last_end:
            log.warning("engine server not reached", server=self.name, reason=reason)
        self.last_end = reason
        self._watcher.deliver()
        if how_long := self._restarts.failed:
            self._enter(EngineStatus.FAILED, life.unusable or f"{reason}, {how_long}")
        elif self.state is EngineStatus.READY:
            self._enter(EngineStatus.WARMING_UP, life.beginning)

    def next_message(self) -> messages.ToEngine | None:
        """The next message to its life."""
        message = self.queue.next_message()
        self._watcher.deliver_soon()  # utterances that could not be read back from the disk have failed
        return message

    def on_message(self, message: messages.FromEngine) -> None:
        """A message from its life."""
        match message:
            case messages.Welcome():
                self.welcome = message
                self.queue.languages = message.languages
            case messages.EngineReady():
                self._on_ready(message)
            case messages.Working():
                self.queue.working, self.queue.in_company = message.utterance_ids, message.shared
            case messages.Heard():
                self._work.on_hypothesis(self.queue, message.hypothesis)
                self._watcher.deliver()
            case messages.Words():
                self._work.on_alignment(self.queue, message.alignment)
                self._watcher.deliver()
            case messages.Load():
                self.queue.load = message
                self.wake()
            case messages.Draining():
                log.info("engine server draining", server=self.name, utterances=len(self.queue.utterances))
                self.queue.available = False
            case messages.Dropped():
                self._work.counters.shed_partials += message.partials
                self._work.counters.exhausted_steps += message.exhausted
                if message.exhausted:
                    shed = message.partials
                    log.warning("the engine ran out of memory", server=self.name, steps=message.exhausted, shed=shed)

    def _on_ready(self, ready: messages.EngineReady) -> None:
        self.runtime, self.engine = ready.runtime, ready.engine
        log.info("engine ready", engine=ready.engine, server=self.name, **ready.runtime.shown())
        for warning in ready.runtime.warnings:
            log.warning(warning, server=self.name)
        self._watcher.on_ready(self, ready)
        self._work.on_ready(self.queue)
        self._enter(EngineStatus.READY, "")
        self.wake()

    def _enter(self, state: EngineStatus, reason: str) -> None:
        if state is EngineStatus.WARMING_UP:
            self._settled.clear()
        else:
            self._settled.set()
        self.state, self.reason = state, reason
        self._watcher.on_state(reason, self.last_end)
