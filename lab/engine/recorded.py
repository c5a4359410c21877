"""What a GPU does with the engine's work, made visible on a CPU.

`Recorded` stands where CUDA graphs stand. Tracing keeps the operations of a function's first run and the tensors they
were done on, and nothing of Python: a length, a branch or a tensor that was made outside is as wrong in the next run as
it would be in a CUDA graph.

`Emulated` stands where the kernels in Triton stand, which cannot be traced: it knows what they know, which is tensors,
and leaves what they leave, which is anything in what belongs to no row. `tests/engine/test_qwen_triton.py` holds the
kernels themselves against torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from asr.engines.qwen.device.graphs import Eager
from asr.engines.qwen.device.interface import Execution, Rows, Windows
from asr.engines.qwen.device.plain import Plain
from asr.engines.qwen.device.staging import Direct


class Recorded:
    fixed = True

    def __init__(self) -> None:
        self.runs: Counter[Hashable] = Counter()
        self._known: dict[Hashable, Callable[[], Tensor]] = {}

    def run(self, key: Hashable, function: Callable[[], Tensor]) -> Tensor:
        self.runs[key] += 1
        if key not in self._known:
            traced = make_fx(function)()
            for node in traced.graph.nodes:
                assert "_local_scalar_dense" not in str(node.target), "a recorded function cannot wait for a number"
            self._known[key] = traced
        return self._known[key]()

    def fresh(self) -> Recorded:
        return type(self)()


class Emulated(Plain):
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
    "recorded": lambda: Execution(Emulated(), Recorded(), Direct()),
    "one by one": lambda: Execution(Emulated(), Eager(), Direct()),
}
"""As on a GPU, with graphs and without."""
