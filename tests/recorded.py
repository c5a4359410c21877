"""What a GPU does with the engine's work, made visible on a CPU: functions recorded once, and packed attention.

`Recorded` stands where CUDA graphs stand. Tracing keeps the operations of a function's first run and the tensors they
were done on, and nothing of Python: a length, a branch or a tensor that was made outside is as wrong in the next run as
it would be in a CUDA graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.nn.attention import varlen

from asr.qwen.attention import Sdpa, Varlen
from asr.qwen.execution import Execution
from asr.qwen.graphs import Eager
from asr.qwen.staging import Direct


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


def _attend(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None, max_q: int, max_k: int,
    is_causal: bool = False, scale: float | None = None, window_size: Sequence[int] | None = None,
    enable_gqa: bool = False, seqused_k: Tensor | None = None, block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What `torch.nn.attention.varlen.varlen_attn` says it does: a row's last query sees the last key."""
    out = torch.full_like(query, float("nan"))
    bounds = cu_seq_q.tolist()
    for row, (low, high) in enumerate(zip(bounds, bounds[1:], strict=False)):
        assert 0 <= low <= high <= len(query) and high - low <= max_q
        if block_table is not None:
            assert seqused_k is not None and block_table.dtype == seqused_k.dtype == cu_seq_q.dtype == torch.int32
            count = int(seqused_k[row])
            mine, theirs = (each[block_table[row]].flatten(0, 1)[:count] for each in (key, value))
        else:
            assert cu_seq_k is not None
            first, last = cu_seq_k[row : row + 2].tolist()
            count, mine, theirs = last - first, key[first:last], value[first:last]
        assert count <= max_k
        if high > low:
            mask = torch.ones(high - low, count, dtype=torch.bool)
            if is_causal:
                mask = mask.tril(count - (high - low))
            shaped = (each.transpose(0, 1)[None] for each in (query[low:high], mine, theirs))
            done = functional.scaled_dot_product_attention(*shaped, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
            out[low:high] = done[0].transpose(0, 1)
    return out, query.new_zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)


# torch has no kernel of packed attention for a CPU. Here is one, for tests, as the function is documented.
_operation: Any = varlen._varlen_attn
_operation.register_kernel("cpu")(_attend)


EXECUTIONS: dict[str, Callable[[], Execution]] = {
    "packed": lambda: Execution(Varlen(), Eager(), Direct()),
    "packed, recorded": lambda: Execution(Varlen(), Recorded(), Direct()),
    "one by one, recorded": lambda: Execution(Sdpa(), Recorded(), Direct()),
}
"""As on a GPU: with graphs and without, and on one that is too old for packed attention."""
