"""What a step of Qwen3-ASR costs a GPU and its host, kernel by kernel: the constants that a measurement changes, in one
table. `predict` runs the engine's own scheduler over them.

A matrix takes its start and its products; what stands between matrices takes its start and its bytes. The H200's
constants were fitted to docs/measurements/h200.md, where the measured figures are; the H100 differs in its memory
(3.0 TB/s copied, measured); the L40S's are taken from its data sheet, and nothing of it has been measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engine.limit import BYTES, Dimensions

QUERIES = 32
"""Of a row in a block of the attention's kernel: each block reads the keys and values again."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Of a GPU and the host it was measured with. Seconds, and amounts a second."""

    name: str
    flops: float
    """Of large products in bfloat16."""
    bytes: float
    """Copied, counting what is read and what is written."""
    measured: bool
    matrix_s: float = 4e-6
    """Before a matrix's products; and no matrix takes less than `least_matrix_s`."""
    least_matrix_s: float = 6.5e-6
    kernel_s: float = 2.2e-6
    """Any other kernel takes at least so long, in a graph."""
    attend_s: float = 7e-6
    attend_share: float = 0.75
    """Of `bytes`, that attention reaches."""
    convolve_s: float = 60e-6
    """Of a pass of the convolutions; and so much for each second of sound: """
    convolve_chunk_s: float = 23.5e-6
    sound_s: float = 0.3e-3
    """The front end's kernels, beside others."""
    host_step_s: float = 2.2e-3
    host_row_s: float = 0.075e-3
    host_message_s: float = 7e-6

    # -- kernels ------------------------------------------------------------------------------------------------------

    def matrix(self, rows: int, inputs: int, outputs: int) -> float:
        reading_s = BYTES * (inputs * outputs + rows * (inputs + outputs)) / self.bytes
        return max(self.least_matrix_s, reading_s, self.matrix_s + 2 * rows * inputs * outputs / self.flops)

    def between(self, numbers: float) -> float:
        """`numbers`: read and written."""
        return max(self.kernel_s, BYTES * numbers / self.bytes)

    def attend(self, model: Dimensions, rows: Sequence[tuple[int, int]]) -> float:
        """`rows`: (positions before, new ones)."""
        width = 2 * BYTES * model.kv_heads * model.head_width
        read = sum(-(-length // QUERIES) * (start + length) for start, length in rows)
        return self.attend_s + read * width / (self.attend_share * self.bytes)

    # -- parts of a step ----------------------------------------------------------------------------------------------

    def text(self, model: Dimensions, rows: Sequence[tuple[int, int]], wanted: int, positions: int) -> float:
        """One forward. `positions`: with those that fill it up."""
        attended, heads = model.heads * model.head_width, (model.heads + 2 * model.kv_heads) * model.head_width
        layer_s = (
            self.matrix(positions, model.width, heads)
            + self.between(2 * positions * heads)
            + self.attend(model, rows)
            + self.matrix(positions, attended, model.width)
            + 2 * self.between(4 * positions * model.width)
            + self.matrix(positions, model.width, 2 * model.ffn)
            + self.between(3 * positions * model.ffn)
            + self.matrix(positions, model.ffn, model.width)
        )
        head_s = self.matrix(wanted, model.width, model.vocabulary) + 4 * self.between(wanted * model.vocabulary)
        return model.layers * layer_s + head_s + 20 * self.kernel_s

    def encoder(self, model: Dimensions, chunks: int, tokens: int) -> float:
        """`chunks`: seconds of sound through the convolutions; `tokens`: through the layers."""
        if not tokens:
            return 0.0
        width, ffn = model.encoder_width, model.encoder_ffn
        layer_s = (
            self.matrix(tokens, width, 3 * width)
            + self.matrix(tokens, width, width)
            + self.matrix(tokens, width, ffn)
            + self.matrix(tokens, ffn, width)
            + self.attend_s
            + 4 * self.between(3 * tokens * width)
            + self.between(2 * tokens * ffn)
        )
        wider = model.encoder_width / 896  # the convolutions have the same channels in both models
        return self.convolve_s + chunks * self.convolve_chunk_s * wider + model.encoder_layers * layer_s

    def host(self, rows: int) -> float:
        return self.host_step_s + self.host_row_s * rows


COSTS = {
    each.name: each
    for each in (
        Costs("h200", 700e12, 4.0e12, measured=True),
        Costs("h100", 700e12, 2.8e12, measured=False),
        Costs("l40s", 250e12, 0.75e12, measured=False, convolve_chunk_s=66e-6),
    )
}
