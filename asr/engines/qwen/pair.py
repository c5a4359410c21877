"""Two models at once: a small one for partials, which are asked for all the time, and a large one for finals and files.

Where both have the same tokens the last partial is a draft for the final: the large model verifies it in the forward
that reads the audio, and writes only where its own answer differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from asr.engines.interface import Answer, Collect, EngineError, EngineExhausted
from asr.engines.qwen.engine import QwenEngine
from asr.runtime import Runtime
from asr.scheduling.request import Request
from asr.utterance import Utterance


class PairEngine:
    """Implements `asr.engines.interface.PipelinedEngine` with two engines. One thread uses it."""

    name = "qwen"

    def __init__(self, small: QwenEngine, large: QwenEngine) -> None:
        self.small, self.large = small, large
        self.capabilities = replace(large.capabilities, batch=min(small.capabilities.batch, large.capabilities.batch))
        self.same_tokens = small.prompts.vocabulary == large.prompts.vocabulary

    def open(self, utterance: Utterance) -> None:
        for engine in self._both(utterance.live):
            engine.open(utterance)

    def append(self, utterance_id: str, audio: bytes) -> None:
        for engine in self._both(self.small.has(utterance_id)):
            engine.append(utterance_id, audio)

    def close(self, utterance_id: str) -> None:
        for engine in self._both(self.small.has(utterance_id)):
            engine.close(utterance_id)

    def _both(self, live: bool) -> tuple[QwenEngine, ...]:
        """The engines that follow an utterance: both follow a call, and files have no partials."""
        return (self.small, self.large) if live else (self.large,)

    def _of(self, request: Request) -> QwenEngine:
        return self.large if request.final or not self.small.has(request.utterance_id) else self.small

    def runnable(self, request: Request) -> bool:
        return self._of(request).runnable(request)

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        return self.launch(requests)()

    def launch(self, requests: Sequence[Request]) -> Collect:
        finals = [request for request in requests if self._of(request) is self.large]
        partials = [request for request in requests if self._of(request) is self.small]
        large: Collect = self.large.launch(finals) if finals else lambda: []
        if not partials:
            return large
        try:
            small = self.small.launch(partials)
        except (EngineError, EngineExhausted):
            # Finals that have been decoded are answered; the scheduler asks for the rest again.
            if answers := large():
                return lambda: answers
            raise
        return lambda: self._collect(large, small)

    def _collect(self, large: Collect, small: Collect) -> list[Answer]:
        answers, partials = large(), small()
        if self.same_tokens:
            for answer in partials:
                name = answer.request.utterance_id
                if self.large.has(name):  # it may have been closed meanwhile
                    self.large.suggest(name, self.small.last_tokens(name))
        return [*answers, *partials]

    def runtime(self) -> Runtime:
        """The large engine's, with the memory and the warnings of both: they share a device."""
        small, large = self.small.runtime(), self.large.runtime()
        warnings = dict.fromkeys([*large.warnings, *small.warnings])
        return replace(large, slots_bytes=large.slots_bytes + small.slots_bytes, warnings=tuple(warnings))

    def warm_up(self) -> None:
        self.large.warm_up()
        self.small.warm_up()
