"""An aligner says when the words of a text were spoken in the audio that the text was made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from asr.utterance import BYTES_PER_S, Format, TimedWord

TOGETHER = 8
"""Utterances in one step at most."""


@dataclass(frozen=True, slots=True)
class AlignRequest:
    """An utterance and its final text."""

    format: Format
    audio: bytes
    text: str
    language: str
    """ISO 639 code, one of the aligner's."""

    @property
    def seconds(self) -> float:
        return len(self.audio) / BYTES_PER_S[self.format]


class Aligner(Protocol):
    """One thread uses it. It remembers nothing: its answer depends on its input alone."""

    languages: tuple[str, ...]
    longest_s: float
    """The length of the longest utterance that can be aligned."""
    together_s: float
    """The utterances of one step are this long together at most; one that is longer goes alone. A final waits for no
    more than a step."""

    def align(self, spoken: Sequence[AlignRequest]) -> list[tuple[TimedWord, ...]]:
        """The words of each, in the order of its text; times are from the first byte of its audio. None for a text
        without letters or digits."""

    def warm_up(self) -> None:
        """Load what the first call of `align` needs."""
