"""What the engine asks of its device, in one file: attention over what is packed, how work is started, and the way
between the host and the device.

The other files of this folder carry it out, for a CPU and for a GPU; `for_device` in
`asr.engines.qwen.device.execution` chooses what suits one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor

# -- attention ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spans:
    """Whose queries stand where in the row. `rows` come in the order of their queries."""

    bounds: Tensor
    """(rows + 1), int32: where each row's queries begin, and the end."""
    slots: Tensor
    """(rows), int64"""
    used: Tensor
    """(rows), int32: positions of the slot that are seen, the new ones included."""
    longest: int
    """Queries of a row at most. Of a row that only fills a forward up there may be more, and what comes out for those
    means nothing."""
    seen: int
    """Positions of a slot that are seen at most."""
    singles: int
    """So many rows, the first ones, are of one position."""
    longer: Sequence[tuple[int, int, int]] | None
    """(slot, start, length) of the others; None if that is to be read from the tensors alone."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Which positions of the audio see each other."""

    bounds: Tensor
    """(windows + 1), int32: where each window begins, and the end."""
    longest: int
    """Positions of a window at most; of what only fills a pass up, as in `Spans`."""
    lengths: Sequence[int] | None
    """Of each window; None if that is to be read from the tensors alone."""


class Attention(Protocol):
    name: str
    """As in the setting `asr.attention`."""
    in_place: bool
    """Rows are read where they are: how long the longest one is, and how much of a slot is seen, costs nothing."""

    def plan(self, spans: Spans, keys: Tensor, count: int, heads: int) -> Any:
        """What is the same in all layers. `keys`: of one of them; `count`, `heads`: of the queries."""

    def over_slots(self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans, plan: Any) -> Tensor:
        """`query`: (positions, heads, width). `keys`, `values`: (slots, positions, fewer heads, width), with the new
        ones in them. → (positions, heads, width)."""

    def plan_windows(self, windows: Windows, like: Tensor) -> Any:
        """As `plan`. `like`: (positions, …), of the kind that the queries will be."""

    def over_windows(self, query: Tensor, key: Tensor, value: Tensor, windows: Windows, plan: Any) -> Tensor:
        """All (positions, heads, width)."""


# -- starting work -----------------------------------------------------------------------------------------------------


class Graphs(Protocol):
    fixed: bool
    """Work is brought to one of a few sizes, and its inputs to one place each."""

    def run(self, key: Hashable, function: Callable[[], Tensor]) -> Tensor: ...

    def fresh(self) -> Graphs:
        """Another one of its kind, with nothing recorded."""


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
        """The way up begins; whoever wants the values waits for them."""

    def settle(self) -> None:
        """Wait for all that was started: rarely."""

    def beside(self) -> AbstractContextManager[None]:
        """What is started in it does not wait for what was started before it, and what is started after it waits for
        that."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The three together."""

    attention: Attention
    graphs: Graphs
    staging: Staging

    @property
    def plain(self) -> bool:
        """Nothing could be simpler."""
        return self.attention.name == "sdpa" and not self.graphs.fixed
