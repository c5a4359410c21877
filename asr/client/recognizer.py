"""The media process's interface to recognition: utterances in, hypotheses out, whatever happens to the engines.

`outstanding.OutstandingWork` holds the open utterances and the messages to send, without I/O. `engines.Engines` runs
the engines of this machine, or connects to engine servers. `Recognizer` joins them: it keeps engines running while
utterances are open, and delivers answers.
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
from asr.engines.selection import unknown_language
from asr.utterance import EngineStatus, Hypothesis, Utterance
from config.settings import Settings

__all__ = ["EngineStatus", "Hypothesis", "Recognizer", "Utterance"]

MB = 1024 * 1024

log = structlog.get_logger("asr")


class Recognizer(OutstandingWork, Engines):
    """Recognition for the media process.

    Every `final` gets exactly one `Hypothesis(final=True)` with its revision, unless the utterance is cancelled or a
    newer request replaces it first. This also holds when an inference process dies: its utterances are sent to another
    process, or to its successor. An utterance over which two processes die ends in a final with `error`. Callbacks run
    on the loop, never inside a call to this object.

    Args:
        on_state: receives the engine's new state and a line with the reason.
    """

    def __init__(self, settings: Settings, *, on_state: Callable[[EngineStatus, str], None]) -> None:
        """Raises ConfigError when the engine that the settings name cannot run on this machine."""
        spill = Spill(settings.data_dir, max_bytes=settings.asr.max_spill_mb * MB)
        OutstandingWork.__init__(self, max_bytes=settings.asr.max_backlog_mb * MB, spill=spill)
        Engines.__init__(self, settings, on_state=on_state)
        self._outcomes = FinalOutcomes()

    async def stop(self) -> None:
        """End the engine; open utterances get no more answers."""
        await super().stop()
        self.drop_spilled()

    # -- utterances -------------------------------------------------------------------------------------------------

    def open(self, utterance: Utterance, on_hypothesis: OnHypothesis) -> None:
        """Begin an utterance; its id must not be open. If the engine does not support its language, the utterance is
        not sent, and its final carries an error."""
        super().open(replace(utterance.sayable(), language=languages.base(utterance.language)), on_hypothesis)
        if why := self.unknown(utterance.language):
            self.refuse(utterance.id, why)
        else:
            self._want()

    def unknown(self, language: str) -> str:
        """Return why the engine cannot recognise this language; empty if it can."""
        return unknown_language(language, self.engine, self.languages)

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        super().final(utterance_id, revision, commit=commit, wanted_in_ms=wanted_in_ms)
        self._after_request()

    def align(self, utterance_id: str, text: str, language: str, on_words: OnAlignment) -> None:
        super().align(utterance_id, text, language, on_words)
        self._after_request()

    def _after_request(self) -> None:
        """Answer a final or an alignment with an error if no engine starts. Otherwise it would wait until one does."""
        if self.state is EngineStatus.FAILED:
            asyncio.get_running_loop().call_soon(self.on_failed, "the engine does not start")

    def commit(self, utterance_id: str) -> None:
        """Accept the speculative final and forget the utterance. It does nothing if the utterance has ended."""
        self.cancel(utterance_id)

    def cancel(self, utterance_id: str) -> None:
        """Forget the utterance; nothing more is delivered for it."""
        self.close(utterance_id)
        self._rest()

    @property
    def trouble(self) -> str | None:
        """Why a new call is likely to get no text, or None."""
        return super().trouble or self._outcomes.trouble(asyncio.get_running_loop().time())

    # -- from the engines -------------------------------------------------------------------------------------------

    @property
    def needed(self) -> bool:
        return super().needed or self.open_utterances > 0

    def add_user(self, server: EngineServer, *, shared: bool) -> EngineQueue:
        queue = self.add_queue(server.name, shared=shared)
        queue.wake = server.wake
        return queue

    def remove_user(self, user: EngineUser) -> None:
        assert isinstance(user, EngineQueue)
        self.remove_queue(user)

    def on_failed(self, reason: str) -> None:
        self.fail_waiting(reason)

    # -- answers ----------------------------------------------------------------------------------------------------

    def on_deliveries(self) -> None:
        """Schedule the callbacks on the loop: none may run inside a caller's own call to this object."""
        asyncio.get_running_loop().call_soon(self._deliver_all)

    def _deliver_all(self) -> None:
        now = asyncio.get_running_loop().time()
        for callback, answer in self.take_deliveries():
            if isinstance(answer, Hypothesis) and answer.final and not answer.refused:
                self._outcomes.record(answer.error, now)
            try:
                callback(answer)
            except Exception:
                # An exception in one caller's callback must not end recognition for the others.
                log.exception("the callback for an answer has failed", utterance_id=answer.utterance_id)
        self._rest()
