"""The media process's side of recognition: it starts inference processes when needed, and replaces those that die.

Loads no engine. Everything here runs on one asyncio loop; nothing blocks, and only `start` and `stop` wait.

- `outstanding.OutstandingWork` holds the answers that callers wait for and the messages to send. No I/O.
- `engine_server.EngineServer` is one inference process over all its lives; there are `asr.processes` of them.
- `Recognizer` joins them: it says when they are wanted, and delivers answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from asr import languages, messages
from asr.client.configuration import builds_from, configurations
from asr.client.engine_health import FinalOutcomes
from asr.client.engine_server import EngineServer
from asr.client.outstanding import OutstandingWork
from asr.client.pending import OnAlignment, OnHypothesis, RecognizerCounters
from asr.client.spill import Spill
from asr.engines.devices import has_gpu
from asr.engines.plugin import find
from asr.engines.runtime import Runtime
from asr.engines.selection import missing, select, select_words, unknown_language
from asr.utterance import EngineStatus, Hypothesis, Utterance
from config.settings import Settings

__all__ = ["EngineStatus", "Hypothesis", "Recognizer", "Utterance"]

MB = 1024 * 1024

log = structlog.get_logger("asr")


class Recognizer:
    """Recognition for the media process.

    Every `final` gets exactly one `Hypothesis(final=True)` with its revision, unless the utterance is cancelled or
    asked something newer first. That holds when an inference process dies: what it had is sent to another one, or to
    the next. An utterance that two die over ends in a final with `error`. Callbacks run on the loop, never inside a
    call to this object.

    Args:
        on_state: takes the engine's new state and a line with the reason.
    """

    def __init__(self, settings: Settings, *, on_state: Callable[[EngineStatus, str], None]) -> None:
        """Raises ConfigError when the engine that the settings name cannot run on this machine."""
        self._settings = settings
        self._on_state = on_state
        self._selection = select(settings.asr)
        spill = Spill(settings.data_dir, max_bytes=settings.asr.max_spill_mb * MB)
        self.state = EngineStatus.IDLE
        self.engine: str = self._selection.engine
        self._plugin = find(self.engine)
        self.languages = self._plugin.languages
        """ISO 639 codes of the languages that can be requested."""
        self._timing = select_words(settings.asr, self.engine)
        self.words: tuple[str, ...] = self._timing.languages
        """Languages whose words can be given timestamps."""
        configured = configurations(self.engine, settings)
        count = len(configured)
        self._outstanding = OutstandingWork(
            max_bytes=settings.asr.max_backlog_mb * MB, spill=spill, processes=max(2, count)
        )
        self._outcomes = FinalOutcomes()
        self._busy = False
        servers = [
            EngineServer(place % count, configured[place % count], self._outstanding, queue, self, lambda: self._needed)
            for place, queue in enumerate(self._outstanding.queues)
        ]
        self.servers = servers[:count]
        """The inference processes, whether they run or not."""
        self._spares = servers[count:]
        """Where there is one process: the place of the one that replaces it at a renewal."""
        self._tasks: list[asyncio.Task[None]] = []
        self._renewal: asyncio.Task[None] | None = None
        self._built_from = builds_from(self.engine, settings)
        self._idle: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Log the engine's name. The inference process starts with the first call, or now if `asr.preload` says so."""
        known = ", ".join(sorted(self.languages))
        log.info("engine", engine=self.engine, languages=known, reason=self._selection.reason)
        if self.words:
            log.info("times of words", reason=self._timing.reason)
        elif self._timing.reason:
            log.warning("no times of words", reason=self._timing.reason)
        idle = f"no call or job for {self._settings.asr.idle_s:g} s"
        for server in self._all:
            task = asyncio.create_task(server.run(idle), name=f"asr-server-{server.number}")
            task.add_done_callback(_report)
            self._tasks.append(task)
        self.keep_alive(self._busy)

    async def stop(self) -> None:
        """End the inference processes; open utterances get no more answers."""
        if self._idle is not None:
            self._idle.cancel()
        tasks = [*self._tasks, *([self._renewal] if self._renewal is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks, self._renewal = [], None
        self._outstanding.drop_spilled()

    # -- utterances -------------------------------------------------------------------------------------------------

    def open(self, utterance: Utterance, on_hypothesis: OnHypothesis) -> None:
        """Begin an utterance; its id must not be open. In a language that the engine does not know it will have a final
        with `error`, and the engine is not asked."""
        sayable = replace(utterance.sayable(), language=languages.base(utterance.language))
        self._outstanding.open(sayable, on_hypothesis)
        if why := self.unknown(utterance.language):
            self._outstanding.refuse(utterance.id, why)
            return
        self._want()

    def unknown(self, language: str) -> str:
        """Why the engine cannot recognise this language; empty if it can."""
        return unknown_language(language, self.engine, self.languages)

    def append(self, utterance_id: str, audio: bytes) -> None:
        """The next bytes in the utterance's format. They are kept until the utterance is over."""
        self._outstanding.append(utterance_id, audio)
        self.deliver_soon()

    def partial(self, utterance_id: str, revision: int) -> None:
        """Request a partial in place of any earlier request. Under load it may not be answered."""
        self._outstanding.partial(utterance_id, revision)

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        """Ask for the final text of the audio appended so far. With `commit` the utterance ends with the answer;
        without, it may go on with more audio and a higher revision, or end with `commit` or `cancel`. `wanted_in_ms`:
        before that nobody waits for the answer, and under load partials of others go first."""
        self._outstanding.final(utterance_id, revision, commit=commit, wanted_in_ms=wanted_in_ms)
        self._after_request()

    def withdraw(self, utterance_id: str) -> None:
        """The utterance continues: the final requested without `commit` need not be answered."""
        self._outstanding.withdraw(utterance_id)

    def align(self, utterance_id: str, text: str, language: str, on_words: OnAlignment) -> None:
        """The final of an utterance with `words` is taken, and their times are wanted: exactly one `Alignment`, with
        words or without, unless it is cancelled first. `text`: of the final; `language`: one of `words`."""
        self._outstanding.align(utterance_id, text, language, on_words)
        self._after_request()

    def commit(self, utterance_id: str) -> None:
        """The speculative final is accepted: forget the utterance. Does nothing if it has ended."""
        self._close(utterance_id)

    def cancel(self, utterance_id: str) -> None:
        """Forget the utterance; nothing more is delivered for it."""
        self._close(utterance_id)

    def release(self, stream: str) -> None:
        """The leg is over, and there will be no more utterances of it: the next leg may have its place."""
        self._outstanding.release(stream)

    def keep_alive(self, busy: bool) -> None:
        """True: calls or jobs are open, so start the processes now and keep them. False: they are over."""
        self._busy = busy or self.preloads
        if self._busy:
            self._want()
        else:
            self._rest()

    @property
    def preloads(self) -> bool:
        """Whether the inference process starts with the worker and stays: a GPU takes up to a minute to be ready."""
        preload = self._settings.asr.preload
        if preload != "auto":
            return preload
        return self.engine == "qwen" and set(self._settings.asr.devices) != {"cpu"} and has_gpu()

    @property
    def trouble(self) -> str | None:
        """Why a new call is likely to get no text, or None."""
        if self.state is EngineStatus.FAILED:
            return "the recognition engine does not start"
        if self.state is not EngineStatus.READY and (lacking := self.lacking) is not None:
            return lacking
        return self._outcomes.trouble(asyncio.get_running_loop().time())

    @property
    def lacking(self) -> str | None:
        """What the next start of the inference process would lack, although the present process may not need it."""
        error = missing(self.engine, self._settings.asr)
        return str(error) if error is not None else None

    @property
    def backlog_bytes(self) -> int:
        """The audio of open utterances."""
        return self._outstanding.audio_bytes

    @property
    def spilled_bytes(self) -> int:
        """The part of it that is on disk."""
        return self._outstanding.spilled_bytes

    @property
    def open_utterances(self) -> int:
        return len(self._outstanding)

    @property
    def counters(self) -> RecognizerCounters:
        return self._outstanding.counters

    @property
    def working(self) -> tuple[str, ...]:
        """Utterances that the processes are working on, by their latest reports."""
        return tuple(name for queue in self._outstanding.queues for name in queue.working)

    @property
    def runtime(self) -> Runtime | None:
        """Where the first process computes that has been ready."""
        return next((server.runtime for server in self.servers if server.runtime is not None), None)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the inference processes that there are."""
        return tuple(server.pid for server in self._all if server.pid is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the engines that are ready, and of processes that do not start while others serve."""
        found = dict.fromkeys(
            warning for server in self.servers if server.runtime is not None for warning in server.runtime.warnings
        )
        if self.state is EngineStatus.READY:
            for server in self.servers:
                if server.state is EngineStatus.FAILED:
                    found[f"inference process {server.number} does not start: {server.reason}"] = None
        return tuple(found)

    # -- renewal ----------------------------------------------------------------------------------------------------

    def check(self, settings: Settings) -> None:
        """Raises ConfigError where the engine could not start with a model that these settings change to. That the
        files of the present one are gone keeps nobody from changing something else."""
        new, old = settings.asr, self._settings.asr
        changed = (new.model, new.partials_model) != (old.model, old.partials_model)
        if changed and (lacking := missing(self.engine, new)) is not None:
            raise lacking

    def use(self, settings: Settings) -> None:
        """Take over settings that `check` has passed. If those that an engine is built from are others than before, or
        the model's files, the processes are replaced one by one while the others have their calls. A single one goes on
        until the one that replaces it is ready."""
        before, self._settings = self._built_from, settings
        self._built_from = builds_from(self.engine, settings)
        configured = configurations(self.engine, settings)
        for server in self._all:
            server.configure = configured[server.number]
        if self._built_from == before:
            return
        self._renewal = asyncio.create_task(self._renew(self._renewal), name="asr-renewal")
        self._renewal.add_done_callback(_report)

    async def _renew(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        if not self._wanted:
            return  # the next ones are configured anew
        log.info("renewing the inference processes", processes=len(self.servers))
        if self._spares:
            failed = await self._replace_the_only_one()
        else:
            failed = await self._replace_one_by_one()
        if failed is not None:
            log.error(
                "renewal stopped: what has not been replaced goes on", process=failed.number, reason=failed.reason
            )
        else:
            log.info("inference processes renewed")

    async def _replace_one_by_one(self) -> EngineServer | None:
        """-> the first that does not start."""
        for server in self.servers:
            if not await server.renew():
                return server
        return None

    async def _replace_the_only_one(self) -> EngineServer | None:
        """-> what was to replace it, if that does not start."""
        (old,), (new,) = self.servers, self._spares
        new.want()
        if not await new.ready():
            new.rest()
            return new
        self.servers, self._spares = [new], [old]
        self.on_state(new)
        await old.drain()
        old.rest()
        return None

    # -- life of the inference processes ------------------------------------------------------------------------------

    @property
    def _all(self) -> list[EngineServer]:
        return [*self.servers, *self._spares]

    @property
    def _wanted(self) -> bool:
        return any(server.wanted for server in self.servers)

    @property
    def _needed(self) -> bool:
        """Whether calls, jobs or utterances are open."""
        return self._busy or len(self._outstanding) > 0

    def _after_request(self) -> None:
        """A final or an alignment has been requested."""
        if self.state is EngineStatus.FAILED:
            asyncio.get_running_loop().call_soon(self._fail_waiting, "the engine does not start")
        self.deliver_soon()

    def _close(self, utterance_id: str) -> None:
        self._outstanding.close(utterance_id)
        self._rest()

    def _want(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        for server in self.servers:
            server.want()

    def _rest(self) -> None:
        """Start counting `asr.idle_s` if nobody needs the engine."""
        if self._needed or self._idle is not None or not self._wanted:
            return
        self._idle = asyncio.get_running_loop().call_later(self._settings.asr.idle_s, self._retire)

    def _retire(self) -> None:
        self._idle = None
        if self._needed:
            return
        for server in self._all:
            server.rest()

    # -- from the servers -------------------------------------------------------------------------------------------

    def on_ready(self, server: EngineServer, ready: messages.EngineReady) -> None:
        if not self._plugin.words:
            self.words = ready.words

    def on_state(self, server: EngineServer) -> None:
        """One that is ready is enough; all must have failed."""
        if server not in self.servers:
            return
        states = {each.state for each in self.servers}
        order = (EngineStatus.READY, EngineStatus.WARMING_UP, EngineStatus.IDLE, EngineStatus.FAILED)
        state = next(each for each in order if each in states)
        if state is not self.state:
            self.state = state
            self._on_state(state, self._selection.reason if state is EngineStatus.READY else server.reason)
        if state is EngineStatus.FAILED:
            self._fail_waiting(server.last_end)

    # -- answers ----------------------------------------------------------------------------------------------------

    def deliver_soon(self) -> None:
        """Callbacks are never run inside a call of a caller."""
        if self._outstanding.has_deliveries:
            asyncio.get_running_loop().call_soon(self.deliver)

    def deliver(self) -> None:
        deliveries = self._outstanding.take_deliveries()
        if not deliveries:
            return
        now = asyncio.get_running_loop().time()
        for callback, answer in deliveries:
            if isinstance(answer, Hypothesis) and answer.final and not answer.refused:
                self._outcomes.record(answer.error, now)
            try:
                callback(answer)
            except Exception:
                # One caller's mistake must not end recognition for the others.
                log.exception("an answer was not taken", utterance_id=answer.utterance_id)
        self._rest()

    def _fail_waiting(self, reason: str) -> None:
        self._outstanding.fail_waiting(reason)
        self.deliver()


def _report(supervisor: asyncio.Task[None]) -> None:
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        log.critical("recognition has stopped", exc_info=error)
