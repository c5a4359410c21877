"""What calls and files need of `asr.client.recognizer.Recognizer`, which documents the methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from asr.utterance import Alignment, EngineStatus, Hypothesis, Utterance


class UtteranceRecognizer(Protocol):
    """Turns utterances into hypotheses: what a leg needs."""

    def open(self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None]) -> None: ...
    def append(self, utterance_id: str, audio: bytes) -> None: ...
    def partial(self, utterance_id: str, revision: int) -> None: ...
    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None: ...
    def withdraw(self, utterance_id: str) -> None: ...
    def commit(self, utterance_id: str) -> None: ...
    def cancel(self, utterance_id: str) -> None: ...
    def release(self, stream: str) -> None: ...


class WordAligner(Protocol):
    """Gives the words of finals their times."""

    words: tuple[str, ...]

    def align(self, utterance_id: str, text: str, language: str, on_words: Callable[[Alignment], None]) -> None: ...
    def cancel(self, utterance_id: str) -> None: ...


class FileRecognizer(UtteranceRecognizer, WordAligner, Protocol):
    """What a file needs: both, and what the engine is and can."""

    engine: str
    state: EngineStatus
    languages: tuple[str, ...]
