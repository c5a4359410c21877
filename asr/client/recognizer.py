"""The media process's side of recognition: it starts one inference process when needed, and replaces it when it dies.

Loads no engine. Everything here runs on one asyncio loop; nothing blocks, and only `start` and `stop` wait.

- `outstanding.OutstandingWork` holds the answers that callers wait for and the messages to send. No I/O.
- `engine_process.EngineProcess` is one life of the inference process.
- `Recognizer` joins them: it starts processes, and delivers answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import structlog

from asr import languages, messages
from asr.client.engine_health import FinalOutcomes, RestartPolicy
from asr.client.engine_process import EngineProcess
from asr.client.outstanding import OutstandingWork
from asr.client.pending import OnAlignment, OnHypothesis, RecognizerCounters
from asr.client.spill import Spill
from asr.engines.plugin import find
from asr.engines.runtime import Runtime, has_gpu
from asr.engines.selection import missing, select, select_words, unknown_language
from asr.utterance import EngineStatus, Hypothesis, Utterance
from config.settings import Settings

__all__ = ["EngineStatus", "Hypothesis", "Recognizer", "Utterance"]

MB = 1024 * 1024

log = structlog.get_logger("asr")


class Recognizer:
    """Recognition for the media process.

    Every `final` gets exactly one `Hypothesis(final=True)` with its revision, unless the utterance is cancelled or
    asked something newer first. That holds when the inference process dies: what was open is replayed to the next one.
    An utterance it dies over twice ends in a final with `error`. Callbacks run on the loop, never inside a call to this
    object.

    Args:
        on_state: takes the engine's new state and a line with the reason.
    """

    def __init__(self, settings: Settings, *, on_state: Callable[[EngineStatus, str], None]) -> None:
        """Raises ConfigError when the engine that the settings name cannot run on this machine."""
        self._settings = settings
        self._on_state = on_state
        self._selection = select(settings.asr)
        spill = Spill(settings.data_dir, max_bytes=settings.asr.max_spill_mb * MB)
        self._outstanding = OutstandingWork(max_bytes=settings.asr.max_backlog_mb * MB, spill=spill)
        self.state = EngineStatus.IDLE
        self.engine: str = self._selection.engine
        self._plugin = find(self.engine)
        self.languages = self._plugin.languages
        """ISO 639 codes of the languages that can be requested."""
        self._timing = select_words(settings.asr, self.engine)
        self.words: tuple[str, ...] = self._timing.languages
        """Languages whose words can be given timestamps."""
        self.runtime: Runtime | None = None
        """Where the latest ready engine computes."""
        self._outcomes = FinalOutcomes()
        self._busy = False
        self._wanted = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._process: EngineProcess | None = None
        """The newest process; it may have ended."""

    async def start(self) -> None:
        """Log the engine's name. The inference process starts with the first call, or now if `asr.preload` says so."""
        known = ", ".join(sorted(self.languages))
        log.info("engine", engine=self.engine, languages=known, reason=self._selection.reason)
        if self.words:
            log.info("times of words", reason=self._timing.reason)
        elif self._timing.reason:
            log.warning("no times of words", reason=self._timing.reason)
        self._supervisor = asyncio.create_task(self._supervise(), name="asr-supervisor")
        self._supervisor.add_done_callback(_report)
        self.keep_alive(self._busy)

    async def stop(self) -> None:
        """End the inference process; open utterances get no more answers."""
        if self._idle is not None:
            self._idle.cancel()
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
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
        self._deliver_soon()
        self._wake()

    def partial(self, utterance_id: str, revision: int) -> None:
        """Request a partial in place of any earlier request. Under load it may not be answered."""
        self._outstanding.partial(utterance_id, revision)
        self._wake()

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        """Ask for the final text of the audio appended so far. With `commit` the utterance ends with the answer;
        without, it may go on with more audio and a higher revision, or end with `commit` or `cancel`. `wanted_in_ms`:
        before that nobody waits for the answer, and under load partials of others go first."""
        self._outstanding.final(utterance_id, revision, commit=commit, wanted_in_ms=wanted_in_ms)
        self._after_request()

    def withdraw(self, utterance_id: str) -> None:
        """The utterance continues: the final requested without `commit` need not be answered."""
        self._outstanding.withdraw(utterance_id)
        self._wake()

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

    def keep_alive(self, busy: bool) -> None:
        """True: calls or jobs are open, so start the engine now and keep it. False: they are over."""
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
        return self.engine == "qwen" and self._settings.qwen.device != "cpu" and has_gpu()

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
        """Utterances that the engine is working on, by its latest report."""
        return self._outstanding.working

    @property
    def pid(self) -> int | None:
        """The process id of the inference process, while there is one."""
        return self._process.pid if self._process is not None else None

    # -- life of the inference process ------------------------------------------------------------------------------

    @property
    def _needed(self) -> bool:
        """Whether calls, jobs or utterances are open."""
        return self._busy or len(self._outstanding) > 0

    def _wake(self) -> None:
        """There may be something to send."""
        if self._process is not None:
            self._process.wake()

    def _after_request(self) -> None:
        """A final or an alignment has been requested."""
        if self.state is EngineStatus.FAILED:
            asyncio.get_running_loop().call_soon(self._fail_waiting, "the engine does not start")
        self._deliver_soon()
        self._wake()

    def _close(self, utterance_id: str) -> None:
        self._outstanding.close(utterance_id)
        self._wake()
        self._rest()

    def _want(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._wanted.set()
        self._wake()

    def _rest(self) -> None:
        """Start counting `asr.idle_s` if nobody needs the engine."""
        if self._needed or self._idle is not None or not self._wanted.is_set():
            return
        self._idle = asyncio.get_running_loop().call_later(self._settings.asr.idle_s, self._retire)

    def _retire(self) -> None:
        self._idle = None
        if self._needed:
            return
        self._wanted.clear()
        if self._process is not None:
            self._process.retire()

    async def _supervise(self) -> None:
        restarts = RestartPolicy()
        while True:
            if not self._wanted.is_set():
                self._enter(EngineStatus.IDLE, f"no call or job for {self._settings.asr.idle_s:g} s")
            await self._wanted.wait()
            if self.state is not EngineStatus.FAILED:
                self._enter(EngineStatus.WARMING_UP, "starting the inference process")
            self._process = process = self._new_process()
            reason = await process.run()
            self._outstanding.counters.hangs += process.hung is not None
            if process.retired:
                self._outstanding.forget_process()
                restarts.on_retirement()
                continue
            self._on_death(process, reason, restarts)
            await asyncio.sleep(restarts.backoff_s)

    def _new_process(self) -> EngineProcess:
        settings = self._settings
        return EngineProcess(
            messages.Configure(self.engine, settings.asr, settings.qwen, settings.log.level, settings.log.format),
            next_message=self._next_message,
            needed=lambda: self._needed,
            on_message=self._on_message,
        )

    def _on_death(self, process: EngineProcess, reason: str, restarts: RestartPolicy) -> None:
        ready_s = process.ready_s
        restarts.on_death(
            answered=process.answered,
            lived_s=asyncio.get_running_loop().time() - ready_s if ready_s is not None else 0.0,
            blamed=any(name in self._outstanding for name in self._outstanding.working),
            # Callers have waited long enough for a process that hangs while it starts.
            hopeless=process.unusable is not None or (process.hung is not None and ready_s is None),
        )
        deaths = f"{restarts.deaths:g}"
        log.error("engine died", reason=reason, deaths=deaths, open_utterances=len(self._outstanding))
        self._outstanding.on_death(reason)
        self._deliver()
        if restarts.failed:
            self._enter(EngineStatus.FAILED, process.unusable or f"{reason}, {deaths} times in a row")
            self._fail_waiting(reason)

    def _next_message(self) -> messages.ToEngine | None:
        message = self._outstanding.next_message()
        self._deliver_soon()  # utterances that could not be read back from the disk have failed
        return message

    def _on_message(self, message: messages.FromEngine) -> None:
        match message:
            case messages.EngineReady():
                self._on_ready(message)
            case messages.Working():
                self._outstanding.working = message.utterance_ids
            case messages.Heard():
                self._outstanding.on_hypothesis(message.hypothesis)
                self._deliver()
            case messages.Words():
                self._outstanding.on_alignment(message.alignment)
                self._deliver()
            case messages.Dropped():
                self._outstanding.counters.shed_partials += message.partials
                self._outstanding.counters.exhausted_steps += message.exhausted
                if message.exhausted:
                    log.warning("the engine ran out of memory", steps=message.exhausted, shed=message.partials)

    def _on_ready(self, ready: messages.EngineReady) -> None:
        if not self._plugin.words:
            self.words = ready.words
        self.runtime = ready.runtime
        log.info("engine ready", engine=self.engine, **ready.runtime.shown())
        for warning in ready.runtime.warnings:
            log.warning(warning)
        self._enter(EngineStatus.READY, self._selection.reason)

    def _enter(self, state: EngineStatus, reason: str) -> None:
        if state is not self.state:
            self.state = state
            self._on_state(state, reason)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _deliver_soon(self) -> None:
        """Callbacks are never run inside a call of a caller."""
        if self._outstanding.has_deliveries:
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
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
        self._wake()  # what is over has made room for the next
        self._rest()

    def _fail_waiting(self, reason: str) -> None:
        self._outstanding.fail_waiting(reason)
        self._deliver()


def _report(supervisor: asyncio.Task[None]) -> None:
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        log.critical("recognition has stopped", exc_info=error)
