"""The media process's side of recognition: utterances in, hypotheses out, whatever happens to the engines.

- `outstanding.OutstandingWork` holds the answers that callers wait for and the messages to send. No I/O.
- `engines.Engines` has the engines, of this machine or elsewhere.
- `Recognizer` joins them: it says when they are wanted, and delivers answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from asr import languages
from asr.client.engine_health import FinalOutcomes
from asr.client.engine_server import EngineServer, EngineUser
from asr.client.engines import Engines
from asr.client.outstanding import EngineQueue, OutstandingWork
from asr.client.send_queue import OnAlignment, OnHypothesis
from asr.client.spill import Spill
from asr.counters import RecognizerCounters
from asr.engines.selection import unknown_language
from asr.utterance import EngineStatus, Hypothesis, Utterance
from config.settings import Settings

__all__ = ["EngineStatus", "Hypothesis", "Recognizer", "Utterance"]

MB = 1024 * 1024

log = structlog.get_logger("asr")


class Recognizer(Engines):
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
        spill = Spill(settings.data_dir, max_bytes=settings.asr.max_spill_mb * MB)
        self._outstanding = OutstandingWork(max_bytes=settings.asr.max_backlog_mb * MB, spill=spill)
        self._outstanding.on_deliveries = lambda: asyncio.get_running_loop().call_soon(self._deliver)
        self._outcomes = FinalOutcomes()
        super().__init__(settings, on_state=on_state)

    async def stop(self) -> None:
        """End the engine; open utterances get no more answers."""
        await super().stop()
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

    @property
    def trouble(self) -> str | None:
        """Why a new call is likely to get no text, or None."""
        return super().trouble or self._outcomes.trouble(asyncio.get_running_loop().time())

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

    # -- from the engines -------------------------------------------------------------------------------------------

    @property
    def needed(self) -> bool:
        """Whether calls, jobs or utterances are open."""
        return super().needed or len(self._outstanding) > 0

    def add_user(self, server: EngineServer, *, shared: bool) -> EngineQueue:
        queue = self._outstanding.add_queue(server.name, shared=shared)
        queue.wake = server.wake
        return queue

    def remove_user(self, user: EngineUser) -> None:
        assert isinstance(user, EngineQueue)
        self._outstanding.remove_queue(user)

    def on_failed(self, reason: str) -> None:
        self._outstanding.fail_waiting(reason)

    def _after_request(self) -> None:
        """A final or an alignment has been requested."""
        if self.state is EngineStatus.FAILED:
            asyncio.get_running_loop().call_soon(self.on_failed, "the engine does not start")

    def _close(self, utterance_id: str) -> None:
        self._outstanding.close(utterance_id)
        self._rest()

    def _deliver(self) -> None:
        """Take answers to their callers, and never inside a call of one of them."""
        now = asyncio.get_running_loop().time()
        for callback, answer in self._outstanding.take_deliveries():
            if isinstance(answer, Hypothesis) and answer.final and not answer.refused:
                self._outcomes.record(answer.error, now)
            try:
                callback(answer)
            except Exception:
                # One caller's mistake must not end recognition for the others.
                log.exception("an answer was not taken", utterance_id=answer.utterance_id)
        self._rest()
