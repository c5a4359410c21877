"""How long a step of an engine lasts, and which of its requests have their answer after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from asr.scheduling.request import Request
from benchmarks.engine.limit import CHIPS
from benchmarks.scale.talk import BYTES_PER_S


class Costs(Protocol):
    @property
    def batch(self) -> int:
        """Requests in a step."""

    def step(self, requests: Sequence[Request]) -> tuple[float, Sequence[Request]]:
        """Seconds, and the requests that have their answer then. The others go on in a later step."""

    def forget(self, utterance_id: str) -> None:
        """The utterance is over."""


ROWS = 3.0
"""Forwards that an answer takes: two or three serial ones with the partial before as a draft, and one to read."""
STEP_S, ROW_S = 0.001, 0.000133
"""Of a forward and of each of its rows: 0.6B on an H200, computed, and the same as in `benchmarks.engine.host`."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """An estimate: Qwen3-ASR 0.6B has not run on a GPU. An answer has all of its forwards in one step, so somebody who
    comes waits for three of them, and not for one: finals look later here than they would be."""

    batch: int = 128
    slower: float = CHIPS["H200"].bytes / CHIPS["H100"].bytes
    """Than an H200, at what memory alone decides: the parameters that each forward reads."""

    def step(self, requests: Sequence[Request]) -> tuple[float, Sequence[Request]]:
        return ROWS * (STEP_S * self.slower + ROW_S * len(requests)), requests

    def forget(self, utterance_id: str) -> None: ...


@dataclass(slots=True)
class Moonshine:
    """Moonshine tiny in one process of one thread, fitted to what is measured with one person and with eight (24 and 44
    ms for the median partial, 0.081 s of CPU for a second of audio). docs/measurements/simulation.md compares the
    rest."""

    partial_s: float = 0.009
    final_s: float = 0.032
    each_s: float = 0.0075
    """More for each second of the utterance."""
    bound_s: float = 0.022
    """After so long a step ends: `STEP_S` of the engine, and the call of the network that is under way then."""
    batch: int = 1
    _left: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Utterance → (revision, seconds of work that are left of it)."""

    def step(self, requests: Sequence[Request]) -> tuple[float, Sequence[Request]]:
        (request,) = requests
        revision, left_s = self._left.get(request.utterance_id, (-1, 0.0))
        if revision != request.revision:
            begun_s = self.final_s if request.final else self.partial_s
            left_s = begun_s + self.each_s * request.end / BYTES_PER_S
        if left_s <= self.bound_s:
            self._left.pop(request.utterance_id, None)
            return left_s, requests
        self._left[request.utterance_id] = request.revision, left_s - self.bound_s
        return self.bound_s, ()

    def forget(self, utterance_id: str) -> None:
        self._left.pop(utterance_id, None)
