"""Moonshine over many calls: a few threads, each at one utterance."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np

from asr.engines.interface import Answer, Capabilities, EngineError, EngineUnusable
from asr.engines.moonshine.model import RATE_HZ, Model, ModelError
from asr.engines.moonshine.session import MoonshineSession
from asr.engines.speech import SpeechDetector
from asr.scheduling.request import Request
from asr.utterance import Utterance

STEP_S = 0.02
"""After this time no thread begins with another call of the network: something more urgent may have come."""


class MoonshineEngine:
    """Implements `asr.engines.interface.Engine`.

    A step hands the requests to the threads, the most urgent first; each works on one until it has its answer or the
    time is up, and goes on with the next. A call of the network takes 2 ms for a token, and for the encoder some 5 ms
    for each second of a piece, 125 at most: so long something more urgent may have to wait beyond `STEP_S`.
    """

    name = "moonshine"

    def __init__(self, model: Model, threads: int) -> None:
        assert threads > 0
        # With two requests for each thread none is idle while another one comes to the end of its utterance.
        self.capabilities = Capabilities(batch=1 if threads == 1 else 2 * threads)
        self._model, self._speech = model, SpeechDetector()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "moonshine") if threads > 1 else None
        self._sessions: dict[str, MoonshineSession] = {}

    def open(self, utterance: Utterance) -> None:
        assert utterance.id not in self._sessions, f"{utterance.id} is open"
        self._sessions[utterance.id] = MoonshineSession(self._model, self._speech, utterance)

    def append(self, utterance_id: str, audio: bytes) -> None:
        self._sessions[utterance_id].append(audio)

    def close(self, utterance_id: str) -> None:
        del self._sessions[utterance_id]

    def likelihood(self, utterance_id: str) -> float:
        """The mean logarithm of the probabilities of the tokens in the utterance's latest final; 0 without any."""
        found = self._sessions[utterance_id].likelihoods
        return sum(found) / len(found) if found else 0.0

    def runnable(self, request: Request) -> bool:
        return True

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        sessions = [self._sessions[request.utterance_id] for request in requests]
        for session, request in zip(sessions, requests, strict=True):
            session.begin(request)
        waiting, until_s = deque(sessions), time.perf_counter() + STEP_S
        if self._pool is None or len(sessions) == 1:
            _work(waiting, until_s)
        else:
            working = [self._pool.submit(_work, waiting, until_s) for _ in range(min(self._threads, len(sessions)))]
            wait(working)  # for all of them: a session is used by one thread at a time
            for each in working:
                each.result()
        return [answer for session in sessions if (answer := session.pop_answer()) is not None]

    def warm_up(self) -> None:
        """One call of each network, which allocates what the first request would have to wait for."""
        silence = np.zeros(RATE_HZ, np.float32)
        self._speech.first(silence)
        try:
            audio = self._model.encode(silence)
            logits, cache = self._model.begin(audio, ())
            self._model.advance(audio, [int(logits[0].argmax())], cache)
        except ModelError as error:
            raise EngineUnusable(f"the weights of Moonshine do not work: {error}") from error


def _work(waiting: deque[MoonshineSession], until_s: float) -> None:
    """One thread's part of a step. Raises EngineError."""
    while True:
        try:
            session = waiting.popleft()
        except IndexError:
            return
        try:
            while not session.advance():
                if time.perf_counter() >= until_s:
                    return
        except ModelError as error:
            raise EngineError(session.utterance.id, str(error)) from error
        if time.perf_counter() >= until_s:
            return


def build(folder: Path, threads: int) -> MoonshineEngine:
    """Load the model from this folder. Raises EngineUnusable."""
    try:
        return MoonshineEngine(Model(folder), threads)
    except Exception as error:  # onnxruntime's errors have no common base of their own
        raise EngineUnusable(f"the weights of Moonshine in {folder} cannot be loaded: {error}") from error
