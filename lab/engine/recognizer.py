"""A recognizer with a real inference process, and everything that it has said."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asr.client.recognizer import EngineStatus, Hypothesis, Recognizer, Utterance
from audio.codecs.g711 import ulaw_encode
from config.settings import Asr, Settings
from lab.engine.listener import LISTENER_PATH, SITE
from lab.media.speech import speech
from lab.patience import eventually

SETTINGS = Settings(asr=Asr(engine="moonshine", threads=1))
PROMPT = "agent-loggedoff"
LIMIT_S = 40.0


def of_listener(processes: int = 1, threads: int = 1, **more: Any) -> Settings:
    """Settings of the engine `listener`; `threads`: of each process."""
    return Settings(asr=Asr(engine="listener", processes=processes, threads=processes * threads, **more))


def remote_engine(base: str, model: str, **more: Any) -> Settings:
    """Settings of the engine `openai`, which asks this server."""
    return Settings(asr=Asr(engine="openai", url=base, model=model, preload=True, **more))


def install_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process, and those that it starts, find the engine `listener`."""
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.setenv("PYTHONPATH", LISTENER_PATH["PYTHONPATH"])


def codes(name: str) -> bytes:
    return ulaw_encode(speech(name))


class Client:
    """A recogniser and everything it has said."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.states: list[EngineStatus] = []
        self.reasons: list[str] = []
        self.heard: list[Hypothesis] = []
        self.recognizer = Recognizer(settings, on_state=self._state)

    def _state(self, state: EngineStatus, reason: str) -> None:
        self.states.append(state)
        self.reasons.append(reason)

    def say(self, name: str, audio: bytes) -> None:
        self.recognizer.open(Utterance(name, "PCMU"), self.heard.append)
        for at in range(0, len(audio), 1600):
            self.recognizer.append(name, audio[at : at + 1600])

    async def until(self, condition: Callable[[], object]) -> None:
        await eventually(condition, LIMIT_S)

    async def ready(self) -> None:
        await self.until(lambda: self.recognizer.state is EngineStatus.READY)

    @property
    def pid(self) -> int | None:
        """Of the first inference process."""
        return self.recognizer.servers[0].pid

    @property
    def working(self) -> list[str]:
        """Utterances that the processes are working on, by their latest reports."""
        return [name for queue in self.recognizer.queues for name in queue.working]

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.pid is not None
        os.kill(self.pid, number)

    def finals(self, name: str) -> list[Hypothesis]:
        return [h for h in self.heard if h.utterance_id == name and h.final]


@asynccontextmanager
async def client(settings: Settings = SETTINGS) -> AsyncIterator[Client]:
    made, alone = Client(settings), not _tasks()
    await made.recognizer.start()
    try:
        yield made
    finally:
        await made.recognizer.stop()
        assert made.recognizer.pids == ()
        assert not alone or _tasks() == []


def _tasks() -> list[str]:
    """Names of the tasks that recognisers have."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("asr")]
