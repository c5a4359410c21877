"""What a step of an engine was spent on, as the benchmark counts it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from asr.engines.interface import Engine


@dataclass(slots=True)
class Spent:
    """On one utterance in one step, or on all of a kind."""

    forwards: int = 0
    """Of the text model in which it had a row."""
    tokens: int = 0
    """Its positions through the text model: prompt, audio, drafts and what was decoded."""
    windows: int = 0
    """Of the encoder."""
    chunks: int = 0
    """Of the convolutions."""
    frames: int = 0
    """Tokens of audio through the encoder's layers."""

    def add(self, other: Spent) -> None:
        self.forwards += other.forwards
        self.tokens += other.tokens
        self.windows += other.windows
        self.chunks += other.chunks
        self.frames += other.frames

    @property
    def positions(self) -> int:
        """A measure of its share in a step that others have a part in, too."""
        return self.tokens + self.frames


@dataclass(slots=True)
class Meter:
    spent: dict[str, Spent] = field(default_factory=dict)
    """By utterance, in the last step."""
    forwards: int = 0
    rows: int = 0
    """In all of these forwards."""


class Metered(Engine, Protocol):
    meter: Meter
