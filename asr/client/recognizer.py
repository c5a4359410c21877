"""The media process's side of recognition: one inference process, there when it is needed, replaced when it dies.

Loads no engine. Everything here runs on one asyncio loop; nothing blocks and nothing but `start` and `stop` waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog

from asr import languages, messages
from asr.client.engine_health import FinalOutcomes
from asr.client.outstanding import Delivery, Ledger
from asr.client.pending import Deliver, RecognizerCounters, TakeWords
from asr.client.spill import Spill
from asr.client.watchdog import Patience, WatchdogVerdict
from asr.engines.plugin import find
from asr.engines.runtime import Runtime, has_gpu
from asr.engines.selection import missing, select, select_words, unknown_language
from asr.messages import FrameError, Frames
from asr.utterance import EngineStatus, Hypothesis, Utterance
from config import child_process
from config.settings import Settings

__all__ = ["EngineStatus", "Hypothesis", "Recognizer", "Utterance"]

MB = 1024 * 1024
RECEIVE_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 256 * 1024
"""In the transport; what is beyond it waits in the utterances themselves."""
BACKOFF_S = 0.5
BACKOFF_MAX_S = 30.0
FAILED_AFTER = 3
"""Deaths in a row, without an answer or a good while of life in between, after which the engine counts as failed. One
over an utterance counts half: each may cost two, and three such in a row are more likely the engine's fault."""
GOOD_LIFE_S = 10.0

log = structlog.get_logger("asr")


class Recognizer:
    """Recognition for the media process.

    Every `final` gets exactly one `Hypothesis(final=True)` with its revision, unless the utterance is cancelled or
    asked something newer first. That holds when the inference process dies: what was open is replayed to the next one.
    An utterance it dies over twice ends in a final with `error`. Callbacks run on the loop, never inside a call to this
    object.

    Args:
        on_state: takes the engine's new state and a line that says why.
    """

    def __init__(self, settings: Settings, *, on_state: Callable[[EngineStatus, str], None]) -> None:
        """Raises ConfigError when the engine that the settings name cannot run on this machine."""
        self._settings = settings
        self._on_state = on_state
        self._selection = select(settings.asr)
        spill = Spill(settings.data_dir, max_bytes=settings.asr.max_spill_mb * MB)
        self._ledger = Ledger(max_bytes=settings.asr.max_backlog_mb * MB, spill=spill)
        self.state = EngineStatus.IDLE
        self.engine: str = self._selection.engine
        self._plugin = find(self.engine)
        self.languages = self._plugin.languages
        """ISO 639 codes of what it can be asked for."""
        self._timing = select_words(settings.asr, self.engine)
        self.words: tuple[str, ...] = self._timing.languages
        """Languages in which the words of a final can be given times."""
        self.runtime: Runtime | None = None
        """Where the engine computes; of the last one that was ready."""
        self._outcomes = FinalOutcomes()
        self._busy = False
        self._wanted = asyncio.Event()
        self._dirty = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._process: Process | None = None
        self._retired = False
        self._answers = self._signs = 0
        self._ready_s: float | None = None
        self._hung: str | None = None
        """Why the process that has just ended was killed by us."""
        self._unusable: str | None = None
        """Why it had no engine."""
        self._raised: str | None = None
        """What its engine raised."""

    async def start(self) -> None:
        """Say which engine will serve. The inference process starts with the first call, or now: `asr.preload`."""
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
        self._ledger.drop_spilled()

    # -- utterances -------------------------------------------------------------------------------------------------

    def open(self, utterance: Utterance, on_hypothesis: Deliver) -> None:
        """Begin an utterance; its id must not be open. In a language that the engine does not know it will have a final
        with `error`, and the engine is not asked."""
        sayable = replace(utterance.sayable(), language=languages.base(utterance.language))
        self._ledger.open(sayable, on_hypothesis)
        if why := self.unknown(utterance.language):
            self._ledger.refuse(utterance.id, why)
            return
        self._want()

    def unknown(self, language: str) -> str:
        """Why the engine cannot be asked for this language; empty when it can."""
        return unknown_language(language, self.engine, self.languages)

    def append(self, utterance_id: str, audio: bytes) -> None:
        """The next bytes in the utterance's format; kept here until it is over."""
        self._ledger.append(utterance_id, audio)
        self._deliver_failures()
        self._dirty.set()

    def partial(self, utterance_id: str, revision: int) -> None:
        """Ask what it sounds like so far; replaces what was asked before. May stay without an answer under load."""
        self._ledger.partial(utterance_id, revision)
        self._dirty.set()

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        """Ask for the final text of the audio appended so far. With `commit` the utterance ends with the answer;
        without, it may go on with more audio and a higher revision, or end with `commit` or `cancel`. `wanted_in_ms`:
        before that nobody waits for the answer, and under load partials of others go first."""
        delivery = self._ledger.final(utterance_id, revision, commit=commit, wanted_in_ms=wanted_in_ms)
        if delivery is not None:
            asyncio.get_running_loop().call_soon(self._deliver, [delivery])
        elif self.state is EngineStatus.FAILED:
            asyncio.get_running_loop().call_soon(self._fail_finals, "the engine does not start")
        self._dirty.set()

    def withdraw(self, utterance_id: str) -> None:
        """The utterance goes on: the final asked for without `commit` may stay without an answer."""
        self._ledger.withdraw(utterance_id)
        self._dirty.set()

    def align(self, utterance_id: str, text: str, language: str, on_words: TakeWords) -> None:
        """The final of an utterance with `words` is taken, and their times are wanted: exactly one `Alignment`, with
        words or without, unless it is cancelled first. `text`: of the final; `language`: one of `words`."""
        delivery = self._ledger.align(utterance_id, text, language, on_words)
        if delivery is not None:
            asyncio.get_running_loop().call_soon(self._deliver, [delivery])
        elif self.state is EngineStatus.FAILED:
            asyncio.get_running_loop().call_soon(self._fail_finals, "the engine does not start")
        self._dirty.set()

    def commit(self, utterance_id: str) -> None:
        """The speculative final is taken: forget the utterance. Nothing happens if it has ended."""
        self._close(utterance_id)

    def cancel(self, utterance_id: str) -> None:
        """Forget the utterance; nothing more is delivered for it."""
        self._close(utterance_id)

    def keep_alive(self, busy: bool) -> None:
        """Calls or jobs are open (True): start the engine now, and do not end it before they are over (False)."""
        self._busy = busy or self.preloads
        if self._busy:
            self._want()
        else:
            self._rest()

    @property
    def preloads(self) -> bool:
        """The inference process starts with the worker and stays: a GPU takes up to a minute to be ready."""
        preload = self._settings.asr.preload
        if preload != "auto":
            return preload
        return self.engine == "qwen" and self._settings.qwen.device != "cpu" and has_gpu()

    @property
    def trouble(self) -> str | None:
        """Why a call that came now would most likely get no text; None: nothing says so."""
        if self.state is EngineStatus.FAILED:
            return "the recognition engine does not start"
        if self.state is not EngineStatus.READY and (lacking := self.lacking) is not None:
            return lacking
        return self._outcomes.trouble(asyncio.get_running_loop().time())

    @property
    def lacking(self) -> str | None:
        """What the next start of the inference process would not find, though this one may serve without it."""
        error = missing(self.engine, self._settings.asr)
        return str(error) if error is not None else None

    @property
    def backlog_bytes(self) -> int:
        """Audio of utterances that are not over."""
        return self._ledger.audio_bytes

    @property
    def spilled_bytes(self) -> int:
        """Of it on disk."""
        return self._ledger.spilled_bytes

    @property
    def open_utterances(self) -> int:
        return len(self._ledger)

    @property
    def counters(self) -> RecognizerCounters:
        return self._ledger.counters

    @property
    def working(self) -> tuple[str, ...]:
        """Utterances the engine is at right now, as far as is known here."""
        return self._ledger.working

    @property
    def pid(self) -> int | None:
        """Of the inference process, while there is one."""
        return self._process.pid if self._process is not None else None

    # -- life of the inference process ------------------------------------------------------------------------------

    def _close(self, utterance_id: str) -> None:
        self._ledger.close(utterance_id)
        self._dirty.set()
        self._rest()

    def _want(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._wanted.set()
        self._dirty.set()

    def _rest(self) -> None:
        """Start counting `asr.idle_s` if nobody needs the engine."""
        if self._busy or len(self._ledger) or self._idle is not None or not self._wanted.is_set():
            return
        self._idle = asyncio.get_running_loop().call_later(self._settings.asr.idle_s, self._retire)

    def _retire(self) -> None:
        self._idle = None
        if self._busy or len(self._ledger):
            return
        self._wanted.clear()
        self._retired = True
        self._dirty.set()

    async def _supervise(self) -> None:
        deaths = 0.0
        while True:
            if not self._wanted.is_set():
                self._enter(EngineStatus.IDLE, f"no call or job for {self._settings.asr.idle_s:g} s")
            await self._wanted.wait()
            if self.state is not EngineStatus.FAILED:
                self._enter(EngineStatus.WARMING_UP, "starting the inference process")
            answers, self._ready_s, self._retired = self._answers, None, False
            self._hung = self._unusable = self._raised = None
            try:
                how = child_process.how(await self._live())
                reason = self._unusable or self._hung or f"the inference process died ({self._raised or how})"
            except OSError as error:  # no process, memory or file descriptor to be had just now
                reason = f"the inference process cannot be started ({error.strerror or error})"
            if self._retired:
                self._ledger.forget_process()
                deaths = 0
                continue
            lived = self._ready_s is not None and asyncio.get_running_loop().time() - self._ready_s >= GOOD_LIFE_S
            blamed = any(name in self._ledger for name in self._ledger.working)
            deaths = (0.0 if lived or self._answers > answers else deaths) + (0.5 if blamed else 1.0)
            if self._unusable or (self._hung and self._ready_s is None):
                deaths = max(deaths, FAILED_AFTER)  # it will not get better, or whoever waits has waited long enough
            log.error("engine died", reason=reason, deaths=f"{deaths:g}", open_utterances=len(self._ledger))
            self._deliver(self._ledger.restart(reason))
            if deaths >= FAILED_AFTER:
                self._enter(EngineStatus.FAILED, self._unusable or f"{reason}, {deaths:g} times in a row")
                self._fail_finals(reason)
            await asyncio.sleep(_backoff_s(deaths))

    async def _live(self) -> int:
        """One life of the inference process, to its end; its exit status."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            channels = []
            for _ in ("requests", "answers"):
                one, other = socket.socketpair()
                channels.append((ours.enter_context(one), theirs.enter_context(other)))
            (requests, reads), (answers, writes) = channels
            self._process = process = await child_process.spawn("asr.server.process", (reads.fileno(), writes.fileno()))
            theirs.close()
            try:
                await self._converse(requests, answers, process)
            finally:
                requests.close()
                code = await child_process.end(process)
                self._process = None
        return code

    async def _converse(self, requests: socket.socket, answers: socket.socket, process: Process) -> None:
        # One channel each way: when the process dies with requests unread, writing fails at once, and what it has said
        # before, above all what it was working on, must still be heard.
        reader, listening = await asyncio.open_connection(sock=answers)
        _, writer = await asyncio.open_connection(sock=requests)
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        sender = asyncio.create_task(self._send(writer), name="asr-sender")
        watcher = asyncio.create_task(self._watch(writer, process), name="asr-watcher")
        impatience: list[asyncio.TimerHandle] = []

        def told(task: asyncio.Task[None]) -> None:
            # Nobody would hear from a process that is told nothing more: it ends, by itself or not.
            writer.close()
            impatience.append(asyncio.get_running_loop().call_later(child_process.END_S, child_process.kill, process))

        sender.add_done_callback(told)
        try:
            await self._receive(reader)
        finally:
            sender.remove_done_callback(told)
            for timer in impatience:
                timer.cancel()
            watcher.cancel()
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (error,) = await asyncio.gather(sender, return_exceptions=True)
                if isinstance(error, Exception) and not isinstance(error, ConnectionError):
                    log.error("could not tell the engine", exc_info=error)
            for stream in (writer, listening):
                stream.close()
                with contextlib.suppress(ConnectionError):
                    await stream.wait_closed()

    async def _watch(self, writer: asyncio.StreamWriter, process: Process) -> None:
        """End it when it hangs."""
        patience = Patience(hang_s=self._settings.asr.hang_s, start_s=self._settings.asr.start_timeout_s)
        before = self._signs
        while True:
            await asyncio.sleep(patience.period_s)
            ready = self._ready_s is not None
            needed = self._busy or len(self._ledger) > 0
            match patience.look(self._signs - before, ready=ready, needed=needed):
                case WatchdogVerdict.ASK:
                    writer.write(messages.encode(messages.Ping()))
                case WatchdogVerdict.HUNG:
                    self._hung = patience.why(ready=ready)
                    self._ledger.counters.hangs += 1
                    child_process.kill(process)
                    return

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        frames = Frames()
        try:
            while data := await reader.read(RECEIVE_BYTES):
                for body in frames.feed(data):
                    self._take(messages.decode_from_engine(body))
        except FrameError as error:
            log.error("unreadable answer", error=str(error))
        except ConnectionError:
            pass  # it has died with data of ours unread

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        settings = self._settings
        hello = messages.Configure(self.engine, settings.asr, settings.qwen, settings.log.level, settings.log.format)
        writer.write(messages.encode(hello))
        while not self._retired:
            self._dirty.clear()
            while (message := self._ledger.next_message()) is not None:
                writer.write(messages.encode(message))
                await writer.drain()
            self._deliver_failures()
            await self._dirty.wait()
        writer.close()

    def _take(self, message: messages.FromEngine) -> None:
        self._signs += 1
        match message:
            case messages.EngineReady():
                if not self._plugin.words:
                    self.words = message.words
                self.runtime = message.runtime
                log.info("engine ready", engine=self.engine, **message.runtime.shown())
                for warning in message.runtime.warnings:
                    log.warning(warning)
                self._ready_s = asyncio.get_running_loop().time()
                self._enter(EngineStatus.READY, self._selection.reason)
            case messages.EngineFailed():
                self._unusable = message.reason
            case messages.EngineCrashed():
                self._raised = message.reason
            case messages.Working():
                self._ledger.working = message.utterance_ids
            case messages.Heard():
                self._answers += 1
                if (delivery := self._ledger.heard(message.hypothesis)) is not None:
                    self._deliver([delivery])
            case messages.Words():
                self._answers += 1
                if (delivery := self._ledger.aligned(message.alignment)) is not None:
                    self._deliver([delivery])
            case messages.Dropped():
                self._ledger.counters.shed_partials += message.partials
                self._ledger.counters.exhausted_steps += message.exhausted
                if message.exhausted:
                    log.warning("the engine ran out of memory", steps=message.exhausted, shed=message.partials)
            case messages.Pong():
                pass

    def _deliver_failures(self) -> None:
        """What had no room on the disk, or could not be read back."""
        if failures := self._ledger.take_failures():
            asyncio.get_running_loop().call_soon(self._deliver, failures)

    def _fail_finals(self, reason: str) -> None:
        self._deliver(self._ledger.fail_finals(reason))

    def _deliver(self, deliveries: Iterable[Delivery]) -> None:
        now = asyncio.get_running_loop().time()
        for deliver, answer in deliveries:
            if isinstance(answer, Hypothesis) and answer.final and not answer.refused:
                self._outcomes.record(answer.error, now)
            try:
                deliver(answer)
            except Exception:
                # One caller's mistake must not end recognition for the others.
                log.exception("an answer was not taken", utterance_id=answer.utterance_id)
        self._dirty.set()  # what is over has made room for the next
        self._rest()

    def _enter(self, state: EngineStatus, reason: str) -> None:
        if state is not self.state:
            self.state = state
            self._on_state(state, reason)


def _report(supervisor: asyncio.Task[None]) -> None:
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        log.critical("recognition has stopped", exc_info=error)


def _backoff_s(deaths: float) -> float:
    """The first death is answered at once: a caller is waiting."""
    return 0.0 if deaths <= 1 else min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (deaths - 2))
