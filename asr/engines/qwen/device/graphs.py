"""How a piece of the device's work is started: operation by operation, or as a graph that was recorded once.

A function that is run here takes its inputs from tensors that stay where they are, and returns one tensor. Where shapes
are `fixed` it has been recorded at its first run: whatever Python decides in it is decided then, for every later run
with the same key. What it returns is overwritten by the next run with that key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

WARM_UPS = 2
"""Runs before the recording: libraries choose their kernels and take their work space in them."""


class Eager:
    """Python starts every operation."""

    fixed = False

    def run(self, key: Hashable, function: Callable[[], Tensor]) -> Tensor:
        return function()

    def fresh(self) -> Eager:
        return self


class Captured:
    """CUDA graphs: one call starts all kernels of a function. They share one pool of memory."""

    fixed = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._known: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def run(self, key: Hashable, function: Callable[[], Tensor]) -> Tensor:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._capture(function)
        graph, out = known
        graph.replay()
        return out

    def fresh(self) -> Captured:
        return Captured(self._device)

    def _capture(self, function: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        here = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                function()
        here.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            out = function()
        return graph, out


def bucket(count: int, buckets: tuple[int, ...]) -> int | None:
    """The smallest of the ascending `buckets` that holds `count`; None when none does."""
    return next((each for each in buckets if count <= each), None)


def buckets(most: int) -> tuple[int, ...]:
    """Sizes up to `most` and it: 1, 2, 4, 8, then steps of a quarter to a half, so that little is computed in vain."""
    sizes = [size for power in range(3, 24) for size in (1 << power, 3 << (power - 1)) if size < most]
    return (*(size for size in (1, 2, 4) if size < most), *sizes, most)
