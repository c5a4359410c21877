"""What a GPU does with the engine's work, made visible on a CPU.

`Recorded` stands where CUDA graphs stand. It keeps the operations of a function's first run and the tensors they were
done on, and nothing of Python: a length, a branch or a tensor that was made outside is as wrong in the next run as it
would be in a CUDA graph, and what comes out lies where it lay before.

`Emulated` stands where the kernels in Triton stand, which cannot be traced: it knows what they know, which is tensors,
and leaves what they leave, which is anything in what belongs to no row. `tests/engine/test_qwen_triton.py` holds the
kernels themselves against torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from asr.engines.qwen.device.execution import Execution, Graphs, Staging
from asr.engines.qwen.device.kernels import Kernels, Rows, Windows


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor that an operation of the recording makes."""

    step: int
    at: int


class Recording(TorchDispatchMode):
    """The operations of a run of `function`, to be done again."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        super().__init__()
        self._steps: list[tuple[Callable[..., Any], Any, Any]] = []
        self._makers: dict[int, _Made] = {}
        self._last: dict[int, int] = {}
        """Step → the step that is the last to need what it makes."""
        self._alive: list[Any] = []
        """Until the end of the run, so that no two tensors of it have the same id."""
        with self:
            self._result = self._noted(function())
        self._alive.clear()
        self._makers.clear()
        self._out: Tensor | None = None

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in str(operation), "a recorded function cannot wait for a number"
        kwargs = kwargs or {}
        step = len(self._steps)
        self._steps.append((operation, _mapped(self._noted, args), _mapped(self._noted, kwargs)))
        made = operation(*args, **kwargs)
        for at, each in enumerate(_several(made)):
            self._alive.append(each)
            self._makers[id(each)] = _Made(step, at)
        return made

    def _noted(self, value: Any) -> Any:
        made = self._makers.get(id(value)) if isinstance(value, Tensor) else None
        if made is None:
            self._alive.append(value)
            return value
        self._last[made.step] = len(self._steps)
        return made

    def __call__(self) -> Tensor:
        made: dict[int, Any] = {}

        def known(value: Any) -> Any:
            return made[value.step][value.at] if isinstance(value, _Made) else value

        for step, (operation, args, kwargs) in enumerate(self._steps):
            made[step] = _several(operation(*_mapped(known, args), **_mapped(known, kwargs)))
            for each in [each for each in made if self._last.get(each, 0) <= step]:
                del made[each]
        out: Tensor = known(self._result)
        self._out = out if self._out is None else self._out.copy_(out)
        return self._out


def _several(made: Any) -> Any:
    return made if isinstance(made, list | tuple) else (made,)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    match value:
        case list() | tuple():
            return type(value)(_mapped(function, each) for each in value)
        case dict():
            return {name: _mapped(function, each) for name, each in value.items()}
    return function(value)


class Recorded:
    fixed = True

    def __init__(self) -> None:
        self.runs: Counter[Hashable] = Counter()
        self._known: dict[Hashable, Recording] = {}

    def run(self, key: Hashable, function: Callable[[], Tensor]) -> Tensor:
        self.runs[key] += 1
        if key not in self._known:
            self._known[key] = Recording(function)
        return self._known[key]()


class Emulated(Kernels):
    name = "emulated"
    graphs = True

    def plan(self, rows: Rows, count: int, group: int) -> Any:
        """The row of each position, as many as there are rows: of none; and the last position that it sees."""
        number = torch.arange(count, device=rows.cu_seqlens.device)
        row = torch.searchsorted(rows.cu_seqlens[1:].contiguous(), number, right=True)
        mine = row.clamp(max=len(rows.context_lens) - 1)
        return row, rows.context_lens[mine] - rows.cu_seqlens[mine + 1] + number

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, rows: Rows, plan: Any) -> Tensor:
        row, last = plan
        pages = rows.block_table[row.clamp(max=len(rows.context_lens) - 1)]
        mine, theirs = (each[pages].flatten(1, 2) for each in (keys, values))
        seen = torch.arange(mine.shape[1], device=query.device) <= last[:, None].clamp(min=0)
        return _left(row < len(rows.context_lens), _each(query, mine, theirs, seen))

    def plan_windows(self, windows: Windows, count: int) -> Any:
        number = torch.arange(count, device=windows.cu_seqlens.device)
        return torch.searchsorted(windows.cu_seqlens[1:].contiguous(), number, right=True)

    def attend_windows(self, query: Tensor, key: Tensor, value: Tensor, windows: Windows, plan: Any) -> Tensor:
        every = (each[None].expand(len(query), *each.shape) for each in (key, value))
        return _left(plan < len(windows.cu_seqlens) - 1, _each(query, *every, plan[:, None] == plan))


def _each(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Every query, (positions, heads, width), against keys of its own, (positions, seen, fewer heads, width)."""
    out = functional.scaled_dot_product_attention(
        query[:, :, None], keys.transpose(1, 2), values.transpose(1, 2), attn_mask=seen[:, None, None], enable_gqa=True
    )
    return out[:, :, 0]


def _left(there: Tensor, out: Tensor) -> Tensor:
    """What belongs to no row is not written, and may be anything: large numbers show where they get to."""
    return torch.where(there[:, None, None], out, torch.full_like(out, 1e4))


EXECUTIONS: dict[str, Callable[[], Execution]] = {
    "recorded": lambda: Execution(Emulated(), Recorded(), Staging()),
    "one by one": lambda: Execution(Emulated(), Graphs(), Staging()),
}
"""As on a GPU, with graphs and without."""
