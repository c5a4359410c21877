"""Engines of another package, each with one thing that it cannot do or does wrong. `tests.process.test_plugins`
installs them.

What an engine says is how many bytes of audio it has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from asr.engines.interface import BYTES_PER_S, Answer, Capabilities, EngineUnusable, Request, TimedWord, Utterance
from config.settings import Asr, Qwen

STEP_MS = 200


class CountingEngine:
    name = "counting"

    def __init__(self, can: Capabilities, fault: Callable[[], object], words: bool) -> None:
        self.capabilities = can
        self._fault, self._words = fault, words
        self._open: dict[str, tuple[Utterance, bytearray]] = {}

    def open(self, utterance: Utterance) -> None:
        self._open[utterance.id] = utterance, bytearray()

    def append(self, utterance_id: str, audio: bytes) -> None:
        utterance, kept = self._open[utterance_id]
        kept += audio
        assert len(kept) <= self.capabilities.longest_s * BYTES_PER_S[utterance.format], "more than it takes"

    def close(self, utterance_id: str) -> None:
        del self._open[utterance_id]

    def runnable(self, request: Request) -> bool:
        return True

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        self._fault()
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Answer:
        assert request.final or self.capabilities.partials, "nobody may ask for a partial"
        utterance, audio = self._open[request.utterance_id]
        count = len(audio[: request.end])
        if not self._words:
            return Answer(request, f"{count} bytes", "en")
        said = [f"w{number}" for number in range(1000 * count // BYTES_PER_S[utterance.format] // STEP_MS)]
        words = tuple(TimedWord(word, n * STEP_MS, n * STEP_MS + 100, 0.5) for n, word in enumerate(said))
        return Answer(request, ", ".join(said), "en", words)

    def warm_up(self) -> None: ...


class FaultyPlugin:
    def __init__(
        self,
        *,
        languages: Sequence[str] = ("en",),
        can: Capabilities = Capabilities(),  # noqa: B008 - frozen
        words: bool = False,
        about: Callable[[], object] = lambda: None,
        missing: Callable[[], object] = lambda: None,
        create: Callable[[], object] = lambda: None,
        step: Callable[[], object] = lambda: None,
    ) -> None:
        self.languages, self.words = languages, words
        self._can, self._about, self._missing, self._create, self._step = can, about, missing, create, step

    def about(self, asr: Asr) -> str:
        self._about()
        return "a count of bytes"

    def missing(self, asr: Asr) -> str | None:
        found = self._missing()
        return None if found is None else str(found)

    def create(self, asr: Asr, qwen: Qwen) -> CountingEngine:
        self._create()
        return CountingEngine(self._can, self._step, self.words)


def _raise(error: Exception) -> Callable[[], object]:
    def raising() -> object:
        raise error

    return raising


incomplete = object()
no_tuple = FaultyPlugin(languages="en")
regional = FaultyPlugin(languages=("en-US",))
about_raises = FaultyPlugin(about=_raise(KeyError("phrase")))
missing_raises = FaultyPlugin(missing=_raise(OSError(13, "Permission denied")))
lacking = FaultyPlugin(missing=lambda: "its licence is not installed: ask for one")
create_raises = FaultyPlugin(create=_raise(ValueError("weights of another version")))
unusable = FaultyPlugin(create=_raise(EngineUnusable("there is no such accelerator: plug it in")))
dying = FaultyPlugin(step=lambda: os._exit(7))
raising = FaultyPlugin(step=_raise(ZeroDivisionError("division by zero")))
without_partials = FaultyPlugin(can=Capabilities(partials=False))
short = FaultyPlugin(can=Capabilities(longest_s=1.0))
timed = FaultyPlugin(words=True)
