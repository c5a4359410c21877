"""An engine that answers at once: what is left of a final's time is the way to the engine and back."""

from __future__ import annotations

from collections.abc import Sequence

from asr.engines.interface import Answer, Capabilities, Request, Utterance
from config.settings import Asr, Qwen


class NullEngine:
    name = "null"
    capabilities = Capabilities(batch=32)

    def open(self, utterance: Utterance) -> None: ...

    def append(self, utterance_id: str, audio: bytes) -> None: ...

    def close(self, utterance_id: str) -> None: ...

    def runnable(self, request: Request) -> bool:
        return True

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        return [Answer(request, "nothing", "en") for request in requests]

    def warm_up(self) -> None: ...


class Plugin:
    languages = ("en",)
    words = False

    def about(self, asr: Asr) -> str:
        return "nothing, at once"

    def missing(self, asr: Asr) -> str | None:
        return None

    def create(self, asr: Asr, qwen: Qwen) -> NullEngine:
        return NullEngine()


plugin = Plugin()
