"""The designs with a model whose weights mean nothing: everything is computed, and a script says what comes out of it.

Imports torch: loaded only when the engine is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from asr.engines.interface import Engine
from asr.engines.qwen.device.execution import Execution
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.loader import LoadedModel
from asr.engines.qwen.packed import PackedRow
from asr.engines.qwen.session import QwenSession
from asr.engines.qwen.sound import MODEL_HZ
from asr.scheduling.request import Request
from asr.utterance import BYTES_PER_S
from benchmarks.engine.native import UNFIXED_CHUNKS, UNFIXED_TOKENS, Refeed
from benchmarks.engine.script import Script


@dataclass(slots=True)
class Spending:
    """Of a design since it was made."""

    forwards: int = 0
    """Of the text model."""
    rows: int = 0
    """Utterances in them."""
    positions: int = 0
    drafted: int = 0
    """Tokens of drafts that were verified."""
    accepted: int = 0
    waits: int = 0
    """Of the host for the device."""
    waited_s: float = 0.0


class Driven(Engine, Protocol):
    def spending(self) -> Spending: ...


class DrivenEngine(QwenEngine):
    """The engine as it is but for the ids."""

    def __init__(self, loaded: LoadedModel, shape: Shape, script: Script, execution: Execution | None = None) -> None:
        super().__init__(loaded, shape, execution)
        self._script = script
        self._spoken = self._drafted = self._accepted = 0

    def close(self, utterance_id: str) -> None:
        super().close(utterance_id)
        self._script.forget(utterance_id)

    def _forward(
        self, sessions: Sequence[QwenSession], rows: Sequence[PackedRow]
    ) -> Callable[[], Sequence[Sequence[int]]]:
        said = super()._forward(sessions, rows)
        self._spoken += len(rows)

        def collect() -> list[list[int]]:
            said()  # all of it, and waited for
            return self._scripted(sessions, rows)

        return collect

    def _scripted(self, sessions: Sequence[QwenSession], rows: Sequence[PackedRow]) -> list[list[int]]:
        return [self._instead(session, row) for session, row in zip(sessions, rows, strict=True)]

    def _instead(self, session: QwenSession, row: PackedRow) -> list[int]:
        if not row.logits_count:
            return []
        now = session.work
        request, first = now.request, len(now.tokens)
        answer = self._script.answer(request.utterance_id, request.end, final=request.final)
        # A draft may be longer than the answer: what follows the end is never looked at.
        said = (answer[first:] + answer[-1:] * row.logits_count)[: row.logits_count]
        agreed = next((at for at, token in enumerate(now.draft) if said[at] != token), len(now.draft))
        self._drafted += len(now.draft)
        self._accepted += agreed
        return said

    def spending(self) -> Spending:
        packed, staging = self.packed, self.packed.staging
        done = packed.forwards, self._spoken, packed.positions
        return Spending(*done, self._drafted, self._accepted, staging.waits, staging.waited_s)


class _Forced:
    """A processor of the library's: the script's next id and no other."""

    def __init__(self, said: Sequence[int]) -> None:
        self._said = iter(said)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, next(self._said)] = 0.0
        return forced


class DrivenRefeed(Refeed):
    """Everything again for every answer."""

    def __init__(self, loaded: LoadedModel, script: Script) -> None:
        super().__init__(loaded)
        self._script = script
        self._answers: dict[str, list[list[int]]] = {}
        self._work = Spending()

    def close(self, utterance_id: str) -> None:
        super().close(utterance_id)
        self._answers.pop(utterance_id, None)
        self._script.forget(utterance_id)

    def _decode(self, known: Any, request: Request) -> str:
        answers = self._answers.setdefault(request.utterance_id, [])
        kept = self._kept(answers)
        said = self._script.answer(request.utterance_id, request.end, final=request.final)[len(kept) :]
        samples = known.samples[: request.end * MODEL_HZ // BYTES_PER_S[known.utterance.format]]
        answers.append([*kept, *self.generate(samples, known.prompt, kept, [_Forced(said)])])
        self._work.forwards += self._spent.forwards
        self._work.rows += self._spent.forwards
        self._work.positions += self._spent.tokens
        return str(self._loaded.tokenizer.decode(answers[-1]))

    def _kept(self, answers: Sequence[Sequence[int]]) -> list[int]:
        """What is forced of the answer before."""
        return []

    def spending(self) -> Spending:
        return Spending(self._work.forwards, self._work.rows, self._work.positions)


class DrivenRollback(DrivenRefeed):
    """The official package's recipe: the answer before is kept but for its last tokens."""

    name = "rollback"

    def _kept(self, answers: Sequence[Sequence[int]]) -> list[int]:
        return list(answers[-1][: max(0, len(answers[-1]) - UNFIXED_TOKENS)]) if len(answers) >= UNFIXED_CHUNKS else []
