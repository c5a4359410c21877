"""Whisper over many calls: finals and files in any language, and now and then a partial."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from asr.engines.interface import Answer, Capabilities, EngineError, EngineUnusable
from asr.engines.speech import RATE_HZ, SpeechDetector
from asr.engines.whisper import answers
from asr.engines.whisper.model import Decode, Detect, Encode, NetworkError, WhisperModel, together
from asr.engines.whisper.session import BEAM, WhisperSession
from asr.engines.whisper.threads import CallThreads, Job
from asr.runtime import Runtime
from asr.scheduling.request import Request
from asr.utterance import Utterance

STEP_S = 0.05
"""A step waits this long for an answer; something more urgent may have come meanwhile."""
ROOM = 0.5
"""Partials are made while less than this part of the threads' time is used."""
TOGETHER_ON_GPU = 16
"""Calls that a GPU makes at once. Not measured yet: a CPU gains nothing from more than one."""


class WhisperEngine:
    """Implements `asr.engines.interface.Engine`.

    Args:
        among: the languages that are possible where an utterance names none, as ISO 639 codes.
    """

    name = "whisper"

    def __init__(self, model: WhisperModel, threads: int, among: Sequence[str]) -> None:
        self._model, self._speech = model, SpeechDetector()
        self._among = tuple(code for code in among if code in model.languages) or tuple(model.languages)
        most = 1 if model.device == "cpu" else TOGETHER_ON_GPU
        # With two answers for each thread none is idle while another one comes to the end of its utterance.
        self._most_begun = 2 * threads * most
        self.capabilities = Capabilities(batch=self._most_begun)
        self._threads = CallThreads(threads, model.perform, together, most=most)
        self._sessions: dict[str, WhisperSession] = {}
        self._jobs: dict[str, Job] = {}
        """Utterance → the answer to its newest request that a step was about."""

    def runtime(self) -> Runtime:
        return Runtime(device=self._model.device, dtype=self._model.dtype, batch=self.capabilities.batch)

    def open(self, utterance: Utterance) -> None:
        assert utterance.id not in self._sessions, f"{utterance.id} is open"
        self._sessions[utterance.id] = WhisperSession(self._model, self._speech, utterance, self._among)

    def append(self, utterance_id: str, audio: bytes) -> None:
        self._sessions[utterance_id].append(audio)

    def close(self, utterance_id: str) -> None:
        del self._sessions[utterance_id]
        self._jobs.pop(utterance_id, None)

    def under_way(self) -> frozenset[str]:
        """The open utterances about which a thread makes a call between two steps."""
        return self._threads.under_way() & self._sessions.keys()

    def runnable(self, request: Request) -> bool:
        if request.final or self._is_begun(request):
            return True
        return self._sessions[request.utterance_id].due(request) and self._has_room()

    def _is_begun(self, request: Request) -> bool:
        job = self._jobs.get(request.utterance_id)
        return job is not None and job.request is request

    def _has_room(self) -> bool:
        return self._threads.free > 0 and self._threads.load(time.perf_counter()) < ROOM

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        """Raises EngineError."""
        jobs = [self._job(request) for request in self._taken(requests)]
        until_s = time.perf_counter() + STEP_S
        self._threads.wait(0)
        self._threads.start(jobs)
        while not any(job.done for job in jobs) and (left_s := until_s - time.perf_counter()) > 0:
            self._compute(jobs, left_s)
            self._threads.start(jobs)
        return self._answers(jobs)

    def _taken(self, requests: Sequence[Request]) -> Sequence[Request]:
        """The requests that this step works on."""
        return requests

    def _compute(self, jobs: Sequence[Job], seconds: float) -> None:
        """Wait until something has been computed, for so many seconds at most."""
        self._threads.wait(seconds)

    def _job(self, request: Request) -> Job:
        name = request.utterance_id
        if not self._is_begun(request):
            session = self._sessions[name]
            if (language := session.utterance.language) and language not in self._model.languages:
                raise EngineError(name, f"the Whisper model does not know the language {language!r}")
            self._jobs[name] = job = Job(request, session.answer(request))
            job.send(None)
        return self._jobs[name]

    def _answers(self, jobs: Sequence[Job]) -> list[Answer]:
        """The answers that are there. An error goes first, and the answers wait for the next step."""
        for job in jobs:
            if job.error is not None:
                del self._jobs[job.request.utterance_id]
                if isinstance(job.error, NetworkError):
                    raise EngineError(job.request.utterance_id, str(job.error)) from job.error
                raise job.error
        found = [job.answer for job in jobs if job.answer is not None]
        for answer in found:
            del self._jobs[answer.request.utterance_id]
        return found

    def warm_up(self) -> None:
        """Make one call of each kind, which allocates what the first request would have to wait for."""
        silence = np.zeros(RATE_HZ, np.float32)
        self._speech.first(silence)
        try:
            (sound,) = self._model.perform([Encode(silence, answers.window(len(silence)))])
            if self._model.multilingual:
                self._model.perform([Detect(sound)])
            self._model.perform([Decode(sound, self._among[0], BEAM)])
        except NetworkError as error:
            raise EngineUnusable(f"the Whisper model does not work: {error}") from error
