"""One inference process of those behind the recognizer, over all its lives: started, replaced when it dies, renewed.

`asr.client.engine_process.EngineProcess` is one life, and `asr.client.recognizer` decides when processes are wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

import structlog

from asr import messages
from asr.client.engine_health import RestartPolicy
from asr.client.engine_process import EngineProcess
from asr.client.outstanding import OutstandingWork
from asr.client.send_queue import SendQueue
from asr.engines.runtime import Runtime
from asr.utterance import EngineStatus

log = structlog.get_logger("asr")

DRAIN_S = 10.0
"""How long a process that is to be replaced may take for the utterances that it has, while others take the new ones."""


class Pool(Protocol):
    """What a server tells the recognizer."""

    def on_state(self, server: EngineServer) -> None:
        """It has entered its state."""

    def on_ready(self, server: EngineServer, ready: messages.EngineReady) -> None: ...

    def deliver(self) -> None:
        """There may be answers for callers."""

    def deliver_soon(self) -> None:
        """The same, from within a call of a caller."""


class EngineServer:
    """See the module.

    Args:
        number: its index in the pool.
        queue: what it is sent.
        needed: whether calls or jobs are open, though this process may have no utterance.
    """

    def __init__(
        self,
        number: int,
        configure: messages.Configure,
        work: OutstandingWork,
        queue: SendQueue,
        pool: Pool,
        needed: Callable[[], bool],
    ) -> None:
        self.number, self.configure = number, configure
        """`configure`: the first message to its next life."""
        self.queue = queue
        self.state = EngineStatus.IDLE
        self.reason = ""
        """Why it is in this state."""
        self.last_end = ""
        """Why its last process ended that nobody had asked to."""
        self.runtime: Runtime | None = None
        """Where its latest ready engine computes."""
        self._work, self._pool, self._needed = work, pool, needed
        self._wanted = asyncio.Event()
        self._process: EngineProcess | None = None
        """The newest; it may have ended."""
        self._settled = asyncio.Event()
        """Set when its process is ready, or will not be, or none is wanted."""
        self._emptied = asyncio.Event()
        """Set when it has no utterance left."""
        queue.wake = self.wake

    @property
    def device(self) -> str:
        """As it is to be used, until it is ready and says which it is."""
        return self.runtime.device if self.runtime is not None else ",".join(self.configure.asr.devices)

    @property
    def pid(self) -> int | None:
        """The process id, while there is a process."""
        return self._process.pid if self._process is not None else None

    def wake(self) -> None:
        """There may be something to send, or nothing any more."""
        if not self.queue.utterances:
            self._emptied.set()
        if self._process is not None:
            self._process.wake()

    @property
    def wanted(self) -> bool:
        return self._wanted.is_set()

    def want(self) -> None:
        """Start a process, and keep it until `rest`."""
        if not self._wanted.is_set():
            self._settled.clear()
        self._wanted.set()

    def rest(self) -> None:
        """Let the process end, and start no other."""
        self._wanted.clear()
        self._retire()

    async def ready(self) -> bool:
        """Wait until the process is ready, or will not be: False."""
        await self._settled.wait()
        return self.state is not EngineStatus.FAILED

    async def drain(self) -> None:
        """Take no further utterance, and answer those that it has, as long as that takes no more than `DRAIN_S`."""
        self.queue.available = False
        if self.queue.utterances:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), DRAIN_S)

    async def renew(self) -> bool:
        """Replace the process by one that is configured anew, while others take the new utterances. -> `ready`."""
        await self.drain()
        self._settled.clear()
        self._retire()
        return await self.ready()

    def _retire(self) -> None:
        """Let the process end. The utterances that it has go to others, or to the next one."""
        if self._process is not None:
            self._process.retire()

    async def run(self, idle_reason: str) -> None:
        """Until cancelled."""
        restarts = RestartPolicy()
        while True:
            if not self._wanted.is_set():
                self._enter(EngineStatus.IDLE, idle_reason)
            await self._wanted.wait()
            if self.state is not EngineStatus.FAILED:
                self._enter(EngineStatus.WARMING_UP, "starting the inference process")
            self._process = process = EngineProcess(
                self.configure,
                next_message=self._next_message,
                needed=lambda: self._needed() or len(self.queue.utterances) > 0,
                on_message=self._on_message,
            )
            reason = await process.run()
            self._work.counters.hangs += process.hung is not None
            self.queue.available = False
            if process.retired:
                self._work.forget_process(self.queue)
                restarts.on_retirement()
                continue
            self._on_death(process, reason, restarts)
            await asyncio.sleep(restarts.backoff_s)

    def _on_death(self, process: EngineProcess, reason: str, restarts: RestartPolicy) -> None:
        ready_s = process.ready_s
        restarts.on_death(
            answered=process.answered,
            lived_s=asyncio.get_running_loop().time() - ready_s if ready_s is not None else 0.0,
            blamed=any(name in self._work for name in self.queue.working),
            # Callers have waited long enough for a process that hangs while it starts.
            hopeless=process.unusable is not None or (process.hung is not None and ready_s is None),
        )
        deaths = f"{restarts.deaths:g}"
        open_utterances = len(self.queue.utterances)
        log.error("engine died", process=self.number, reason=reason, deaths=deaths, open_utterances=open_utterances)
        self.last_end = reason
        self._work.on_death(self.queue, reason)
        self._pool.deliver()
        if restarts.failed:
            self._enter(EngineStatus.FAILED, process.unusable or f"{reason}, {deaths} times in a row")
        elif self.state is EngineStatus.READY:
            self._enter(EngineStatus.WARMING_UP, "starting the inference process")

    def _next_message(self) -> messages.ToEngine | None:
        message = self.queue.next_message()
        self._pool.deliver_soon()  # utterances that could not be read back from the disk have failed
        return message

    def _on_message(self, message: messages.FromEngine) -> None:
        match message:
            case messages.EngineReady():
                self._on_ready(message)
            case messages.Working():
                self.queue.working = message.utterance_ids
            case messages.Heard():
                self._work.on_hypothesis(self.queue, message.hypothesis)
                self._pool.deliver()
            case messages.Words():
                self._work.on_alignment(self.queue, message.alignment)
                self._pool.deliver()
            case messages.Dropped():
                self._work.counters.shed_partials += message.partials
                self._work.counters.exhausted_steps += message.exhausted
                if message.exhausted:
                    shed = message.partials
                    log.warning("the engine ran out of memory", process=self.number, steps=message.exhausted, shed=shed)

    def _on_ready(self, ready: messages.EngineReady) -> None:
        self.runtime = ready.runtime
        log.info("engine ready", engine=self.configure.engine, process=self.number, **ready.runtime.shown())
        for warning in ready.runtime.warnings:
            log.warning(warning, process=self.number)
        self._pool.on_ready(self, ready)
        self._work.on_ready(self.queue)
        self._enter(EngineStatus.READY, "")
        self.wake()

    def _enter(self, state: EngineStatus, reason: str) -> None:
        if state is EngineStatus.WARMING_UP:
            self._settled.clear()
        else:
            self._settled.set()
        self.state, self.reason = state, reason
        self._pool.on_state(self)
