"""The media process's side of recognition: it starts inference processes when needed, and replaces those that die.

Loads no engine. Everything here runs on one asyncio loop; nothing blocks, and only `start` and `stop` wait.

- `outstanding.OutstandingWork` holds the answers that callers wait for and the messages to send. No I/O.
- `servers.engine_server.EngineServer` is one engine server over all its lives. `servers.local_pool` has the inference
  processes of this machine, `servers.server_pool` the connections to `asr.servers`.
- `Recognizer` joins them: it says when they are wanted, and delivers answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from asr import languages, messages
from asr.client.outstanding import OutstandingWork
from asr.client.pending import OnAlignment, OnHypothesis, RecognizerCounters
from asr.client.servers.engine_health import FinalOutcomes
from asr.client.servers.engine_server import EngineServer
from asr.client.servers.pool import Pool
from asr.client.spill import Spill
from asr.engines.runtime import Runtime
from asr.engines.selection import unknown_language
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
        self.state = EngineStatus.IDLE
        spill = Spill(settings.data_dir, max_bytes=settings.asr.max_spill_mb * MB)
        self._outstanding = OutstandingWork(max_bytes=settings.asr.max_backlog_mb * MB, spill=spill)
        self._pool = self._make_pool(settings)
        self._outcomes = FinalOutcomes()
        self._busy = False
        self._idle: asyncio.TimerHandle | None = None

    def _make_pool(self, settings: Settings) -> Pool:
        if settings.asr.servers:
            from asr.client.servers.server_pool import ServerPool

            return ServerPool(settings, self._outstanding, self)
        from asr.client.servers.local_pool import LocalPool

        return LocalPool(settings, self._outstanding, self)

    async def start(self) -> None:
        """Log the engine's name. The engine starts with the first call, or now if `asr.preload` says so."""
        self._pool.start(f"no call or job for {self._settings.asr.idle_s:g} s")
        self.keep_alive(self._busy)

    async def stop(self) -> None:
        """End the engine; open utterances get no more answers."""
        if self._idle is not None:
            self._idle.cancel()
        await self._pool.stop()
        self._outstanding.drop_spilled()

    # -- what serves --------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> str:
        """Its name; empty while it is not known, for it is elsewhere."""
        return self._pool.engine

    @property
    def shared(self) -> bool:
        """The engine is in engine servers elsewhere."""
        return bool(self._settings.asr.servers)

    @property
    def model(self) -> str:
        """The model that the engine has loaded; empty where it has only one."""
        return self._pool.model

    @property
    def languages(self) -> tuple[str, ...]:
        """ISO 639 codes of the languages that can be requested; none while they are not known."""
        return self._pool.languages

    @property
    def words(self) -> tuple[str, ...]:
        """Languages whose words can be given timestamps."""
        return self._pool.words

    @property
    def servers(self) -> Sequence[EngineServer]:
        """The inference processes of this machine, or the engine servers elsewhere, whether they run or not."""
        return self._pool.servers

    # -- utterances -------------------------------------------------------------------------------------------------

    def open(self, utterance: Utterance, on_hypothesis: OnHypothesis, *, suspect: bool = False) -> None:
        """Begin an utterance; its id must not be open. In a language that the engine does not know it will have a final
        with `error`, and the engine is not asked. `suspect`: another engine server has died over it."""
        sayable = replace(utterance.sayable(), language=languages.base(utterance.language))
        self._outstanding.open(sayable, on_hypothesis, suspect=suspect)
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
        """Whether the engine starts with the worker and stays."""
        return self._pool.preloads

    @property
    def trouble(self) -> str | None:
        """Why a new call is likely to get no text, or None."""
        if not self.servers:
            return f"asr.servers: {self._pool.missing}"
        if self.state is EngineStatus.FAILED:
            return "the recognition engine does not start"
        if self.state is not EngineStatus.READY and (lacking := self.lacking) is not None:
            return lacking
        return self._outcomes.trouble(asyncio.get_running_loop().time())

    @property
    def lacking(self) -> str | None:
        """What the next start of the inference process would lack, although the present process may not need it."""
        return self._pool.lacking

    @property
    def backlog_bytes(self) -> int:
        """The audio of open utterances."""
        return self._outstanding.audio_bytes

    @property
    def spilled_bytes(self) -> int:
        """The part of it that is on disk."""
        return self._outstanding.spilled_bytes

    def is_open(self, utterance_id: str) -> bool:
        return utterance_id in self._outstanding

    def crashes(self, utterance_id: str) -> int:
        """How many inference processes have died over this open utterance since its last answer."""
        return self._outstanding.crashes(utterance_id)

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
        return tuple(server.pid for server in self._pool.all if server.pid is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the engines that are ready, and of processes that do not start while others serve."""
        found = dict.fromkeys(
            warning for server in self.servers if server.runtime is not None for warning in server.runtime.warnings
        )
        if self.state is EngineStatus.READY:
            for server in self.servers:
                if server.state is EngineStatus.FAILED:
                    found[f"{server.kind} {server.name} does not start: {server.reason}"] = None
        if self._pool.missing:
            found[f"asr.servers: {self._pool.missing}"] = None
        return tuple(found)

    # -- changed settings -------------------------------------------------------------------------------------------

    def check(self, settings: Settings) -> None:
        """Raises ConfigError where the engine could not start with these settings, or they could not be taken over."""
        self._pool.check(settings)

    def use(self, settings: Settings) -> None:
        """Take over settings that `check` has passed."""
        self._settings = settings
        self._pool.use(settings)

    # -- life of the servers ------------------------------------------------------------------------------------------

    @property
    def needed(self) -> bool:
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
        self._pool.want()

    def _rest(self) -> None:
        """Start counting `asr.idle_s` if nobody needs the engine."""
        if self.needed or self._idle is not None or not any(server.wanted for server in self.servers):
            return
        self._idle = asyncio.get_running_loop().call_later(self._settings.asr.idle_s, self._retire)

    def _retire(self) -> None:
        self._idle = None
        if self.needed:
            return
        self._pool.rest()

    # -- from the servers -------------------------------------------------------------------------------------------

    def on_ready(self, server: EngineServer, ready: messages.EngineReady) -> None:
        self._pool.on_ready(ready)

    def on_state(self, reason: str, last_end: str) -> None:
        """One that is ready is enough; all must have failed."""
        states = {each.state for each in self.servers}
        order = (EngineStatus.READY, EngineStatus.WARMING_UP, EngineStatus.IDLE, EngineStatus.FAILED)
        state = next((each for each in order if each in states), EngineStatus.FAILED)
        if state is not self.state:
            self.state = state
            self._on_state(state, self._pool.reason if state is EngineStatus.READY else reason)
        if state is EngineStatus.FAILED:
            self._fail_waiting(last_end)

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
