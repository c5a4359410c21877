"""What an engine spends on whom: the engine under test with counters around its encoder and its text model.

Imports torch: loaded only when the engine is measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from torch import Tensor

from asr.engines.interface import Answer
from asr.engines.qwen.device.execution import Execution
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.encoder import Audio, Encoder, Encoding
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.loader import LoadedModel
from asr.engines.qwen.packed import Packed, PackedRow
from asr.scheduling.request import Request
from benchmarks.engine.spent import Meter, Spent


class _Encoder(Encoder):
    """Counts by utterance, which its audio stands for."""

    spent: dict[int, Spent]

    def _convolve(self, todo: Sequence[tuple[Encoding, int]], pages: Tensor) -> None:
        before = {id(encoding.audio): (encoding.audio, dict(encoding.audio.chunks)) for encoding, _ in todo}
        super()._convolve(todo, pages)
        for encoding, window in todo:
            spent = self.spent[id(encoding.audio)]
            spent.windows += 1
            spent.frames += sum(chunk.shape[0] for chunk in self._tokens(encoding, window))
        for key, (audio, known) in before.items():
            self.spent[key].chunks += sum(made is not known.get(at) for at, made in audio.chunks.items())

    def of(self, audio: Audio) -> Spent:
        return self.spent[id(audio)]


class _Packed(Packed):
    """Keeps the rows of the last forward."""

    rows: list[PackedRow]

    def launch(self, rows: Sequence[PackedRow]) -> Callable[[], list[list[int]]]:
        self.rows = list(rows)
        return super().launch(rows)


class MeteredEngine(QwenEngine):
    """The engine as it is, and what each step of it was spent on."""

    _encoder_class, _packed_class = _Encoder, _Packed
    encoder: _Encoder
    packed: _Packed

    def __init__(self, loaded: LoadedModel, shape: Shape, execution: Execution | None = None) -> None:
        super().__init__(loaded, shape, execution)
        self.meter = Meter()
        self.encoder.spent = defaultdict(Spent)

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        self.encoder.spent, self.packed.rows = defaultdict(Spent), []
        answers = super().step(requests)
        rows = {row.pages[0]: len(row) for row in self.packed.rows}
        meter, meter.spent = self.meter, {}
        for request in requests:
            spent = self.encoder.of(self._sessions[request.utterance_id].audio)
            pages = self.kv_cache.of(request.utterance_id)
            if pages and pages[0] in rows:
                spent.forwards, spent.tokens = 1, rows[pages[0]]
            meter.spent[request.utterance_id] = spent
        meter.forwards += bool(rows)
        meter.rows += len(rows)
        return answers
