"""What a GPU does with the engine's work, made visible on a CPU: functions recorded once (attention:
`tests.support.kernels`).

`Recorded` stands where CUDA graphs stand. Tracing keeps the operations of a function's first run and the tensors they
were done on, and nothing of Python: a length, a branch or a tensor that was made outside is as wrong in the next run as
it would be in a CUDA graph.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.varlen import varlen_attn

from asr.engines.qwen.device.attention import Sdpa, Varlen
from asr.engines.qwen.device.graphs import Eager
from asr.engines.qwen.device.interface import Execution, Graphs
from asr.engines.qwen.device.staging import Direct
from tests.support import kernels


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


def _varlen(implementation: kernels.Implementation, graphs: Graphs) -> Execution:
    kernels.use(implementation)
    return Execution(Varlen(implementation), graphs, Direct())


EXECUTIONS: dict[str, Callable[[], Execution]] = {"sdpa, recorded": lambda: Execution(Sdpa(), Recorded(), Direct())}
"""As on a GPU: with graphs and without, with each implementation of attention that this torch has."""
if "block_table" in inspect.signature(varlen_attn).parameters:  # not in torch 2.11
    EXECUTIONS |= {"FA2": lambda: _varlen("FA2", Eager()), "FA2, recorded": lambda: _varlen("FA2", Recorded())}
