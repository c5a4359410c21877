"""Moonshine for English and Whisper for the rest, over many calls."""

from __future__ import annotations

from collections.abc import Sequence

from asr.engines.interface import Capabilities, EngineError
from asr.engines.mixed.session import English, MixedSession, Spoken
from asr.engines.moonshine.engine import MoonshineEngine
from asr.engines.whisper.engine import WhisperEngine
from asr.engines.whisper.model import WhisperModel
from asr.engines.whisper.threads import Job
from asr.scheduling.request import Request
from asr.utterance import Utterance

BATCH = 32
"""Requests in a step beside those that Whisper's threads are at."""


class MixedEngine(WhisperEngine):
    """Implements `asr.engines.interface.Engine`. Moonshine works in the engine's thread or its own, beside Whisper's
    threads, so that its finals and partials wait for no call of Whisper's."""

    name = "mixed"
    _sessions: dict[str, MixedSession]  # type: ignore[assignment]

    def __init__(self, moonshine: MoonshineEngine, model: WhisperModel, threads: int, among: Sequence[str]) -> None:
        super().__init__(model, threads, among)
        self.capabilities = Capabilities(batch=self._most_begun + BATCH)
        self._moonshine = moonshine

    def open(self, utterance: Utterance) -> None:
        assert utterance.id not in self._sessions, f"{utterance.id} is open"
        self._sessions[utterance.id] = session = MixedSession(self._model, self._speech, utterance, self._among)
        if session.english:
            self._moonshine.open(utterance)

    def append(self, utterance_id: str, audio: bytes) -> None:
        super().append(utterance_id, audio)
        if self._sessions[utterance_id].english:
            self._moonshine.append(utterance_id, audio)

    def close(self, utterance_id: str) -> None:
        if self._sessions[utterance_id].english:
            self._moonshine.close(utterance_id)
        super().close(utterance_id)

    def runnable(self, request: Request) -> bool:
        session = self._sessions[request.utterance_id]
        if not request.final and session.listens(request):
            return True
        return session.speaks_english() or super().runnable(request)

    def _taken(self, requests: Sequence[Request]) -> list[Request]:
        """Whisper's requests that wait for a thread must not keep Moonshine's out of a step."""
        taken, waiting = [], 0
        for request in requests:
            english = self._sessions[request.utterance_id].speaks_english()
            waiting += not english
            if english or waiting <= self._most_begun or self._is_begun(request):
                taken.append(request)
        return taken

    def _compute(self, jobs: Sequence[Job], seconds: float) -> None:
        asking = [job for job in jobs if isinstance(job.call, English)]
        if not asking:
            super()._compute(jobs, seconds)
            return
        by_request = {id(job.call.request): job for job in asking}
        try:
            answers = self._moonshine.step([job.call.request for job in asking])
        except EngineError as error:
            del self._jobs[error.utterance_id]
            raise
        for answer in answers:
            name = answer.request.utterance_id
            by_request[id(answer.request)].send(Spoken(answer.text, self._moonshine.likelihood(name)))
        self._threads.wait(0)

    def warm_up(self) -> None:
        """Raises EngineUnusable."""
        self._moonshine.warm_up()
        super().warm_up()
