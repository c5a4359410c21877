"""The engine's interface to its device, in one file: the operations between the matrices of a layer, starting work, and
copies between host and device.

The other files of this folder carry it out, for a CPU and for a GPU; `for_device` in
`asr.engines.qwen.device.execution` chooses what suits one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

PAGE = 64
"""Positions in a page of keys and values."""

LOUDEST = {torch.int8: 127.0, torch.float8_e4m3fn: torch.finfo(torch.float8_e4m3fn).max}
"""The largest value that 8 bits hold."""
QUIETEST = 1e-12
"""The least loudest value of a row, so that a row of zeros has a scale, too."""

# -- between the matrices ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a forward: which of its positions belong to one utterance, and how much of it they see."""

    cu_seqlens: Tensor
    """(rows + 1), int32: where each row's positions begin, and where the last ones end. What only fills a forward up
    stands behind that, belongs to no row, and comes out as anything."""
    context_lens: Tensor
    """(rows), int32: positions that a row's last one sees, the new ones included."""
    block_table: Tensor
    """(rows, pages), int32: the pages that these are on, in their order; behind the last one there is anything."""
    single: bool
    """Each row has one position."""
    known: Sequence[tuple[int, int]] | None
    """(positions before the new ones, new ones) of each row; None in a graph, which holds for any."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Which positions of the audio see each other."""

    cu_seqlens: Tensor
    """(windows + 1), int32: as in `Rows`."""
    lengths: Sequence[int] | None
    """The length of each window; None in a graph."""


class Kernels(Protocol):
    """The operations of a layer beside multiplying by its matrices. All widths are those of one head."""

    name: str
    graphs: bool
    """Nothing but tensors tells one forward from another: it may be recorded."""

    def plan(self, rows: Rows, count: int, group: int) -> Any:
        """Prepare what is the same in all layers of a forward of `count` positions. `group` heads of queries share a
        head of keys."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, rows: Rows, plan: Any) -> Tensor:
        """`query`: (positions, heads, width). `keys`, `values`: (pages, positions of a page, fewer heads, width), with
        the new ones in them. Each position sees those before it and itself. → (positions, heads, width)."""

    def plan_windows(self, windows: Windows, count: int) -> Any:
        """As `plan`."""

    def attend_windows(self, query: Tensor, key: Tensor, value: Tensor, windows: Windows, plan: Any) -> Tensor:
        """All (positions, heads, width). Each position sees its window."""

    def rotate(
        self, projected: Tensor, norms: Tensor, cos: Tensor, sin: Tensor, eps: float, slot_mapping: Tensor,
        keys: Tensor, values: Tensor,
    ) -> Tensor:  # fmt: skip
        """`projected`: (positions, heads + 2 * fewer heads, width): queries, keys, values. `norms`: (heads + fewer
        heads, width). `cos`, `sin`: (positions, width). Queries and keys are normalised and turned by their position
        (RoPE); keys and values go to the places `slot_mapping`, (positions), of all positions of all pages. → queries,
        (positions, heads, width)."""

    def add_norm(self, hidden: Tensor, more: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """`hidden` and `more`: (positions, width) → their sum, which may be in `hidden`, and the same normalised."""

    def silu_mul(self, both: Tensor) -> Tensor:
        """(positions, 2 * width), gates and what they let through → (positions, width)."""

    def narrow(self, rows: Tensor, kind: torch.dtype, least: int) -> tuple[Tensor, Tensor]:
        """(rows, width) → the same in 8 bits, at least `least` rows, those behind anything; and what each is to be
        multiplied by, (rows), float32, so that its loudest is `LOUDEST`."""

    def widen(self, product: Tensor, scale: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """`product`: (rows, width), int32, of what was narrow. `scale`: (rows) and `scales`: (width), float32, of the
        one side and of the other; `bias`: (width), float32. → (rows, width) in `dtype`."""


# -- starting work -----------------------------------------------------------------------------------------------------


class Graphs(Protocol):
    fixed: bool
    """Work is brought to one of a few sizes, and its inputs to one place each."""

    def run(self, key: Hashable, function: Callable[[], Tensor]) -> Tensor: ...


# -- the way down and up -----------------------------------------------------------------------------------------------


class Staging(Protocol):
    asynchronous: bool
    """The host goes on while the device computes."""
    waits: int
    """How often the host has waited for the device."""
    waited_s: float
    """Seconds spent so, all together."""

    def down(self, values: NDArray[Any], out: Tensor | None = None) -> Tensor:
        """`values` on the device, in `out` if there is one: of the same shape and type, and overwritten."""

    def lift(self, values: Tensor) -> Callable[[], list[Any]]:
        """Start a copy to the host. The returned function waits for it."""

    def settle(self) -> None:
        """Wait for all that was started: rarely."""

    def beside(self) -> AbstractContextManager[None]:
        """A context: work started in it does not wait for work started before it, and work started after it waits for
        that of the context."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The three together."""

    kernels: Kernels
    graphs: Graphs
    staging: Staging

    @property
    def plain(self) -> bool:
        """Nothing could be simpler."""
        return self.kernels.name == "sdpa" and not self.graphs.fixed

    @property
    def described(self) -> str:
        return f"{self.kernels.name} {'with' if self.graphs.fixed else 'without'} graphs"
