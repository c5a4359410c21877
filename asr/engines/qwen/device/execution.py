"""Streams, events and graphs: how work is started on the engine's device, and the way between it and the host.

A function that `Graphs.run` is given takes its inputs from tensors that stay where they are, and returns one tensor.
Where shapes are `fixed` it has been recorded at its first run: whatever Python decides in it is decided then, for every
later run with the same key. What it returns is overwritten by the next run with that key.

The inputs of a piece of work go down once, and its result comes up once. `down` and `lift` do not wait. What `lift`
returns does: it is the only place where the host waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.engines.qwen.device.kernels import Kernels

WARM_UPS = 2
"""Runs before the recording: libraries choose their kernels and take their work space in them."""


class Graphs:
    """The way in which work is started: here Python starts every operation."""

    fixed = False
    """Work is brought to one of a few sizes, and its inputs to one place each."""

    def run(self, key: Hashable, function: Callable[[], Tensor]) -> Tensor:
        return function()


class Captured(Graphs):
    """CUDA graphs: one call starts all kernels of a function. They share one pool of memory.

    A graph keeps the addresses of its inputs: a tensor that was made anew would be read where the old one was, without
    an error. So inputs are copied into tensors that stay.
    """

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


class Staging:
    """The way between host and device: here the device is the host."""

    asynchronous = False
    """The host goes on while the device computes."""

    def __init__(self) -> None:
        self.waits = 0
        """The number of times that the host has waited for the device."""
        self.waited_s = 0.0
        """The seconds that it has waited, all together."""

    def down(self, values: NDArray[Any], out: Tensor | None = None) -> Tensor:
        """`values` on the device, in `out` if there is one: of the same shape and type, and overwritten."""
        source = torch.from_numpy(values)
        return source if out is None else out.copy_(source)

    def lift(self, values: Tensor) -> Callable[[], list[Any]]:
        """Start a copy to the host. The returned function waits for it."""
        found: list[Any] = values.tolist()

        def wait() -> list[Any]:
            self.waits += 1
            return found

        return wait

    def settle(self) -> None:
        """Wait for all that was started: rarely."""

    def beside(self) -> AbstractContextManager[None]:
        """A context: work started in it does not wait for work started before it, and work started after it waits for
        that of the context."""
        return nullcontext()


class Copying(Staging):
    """Copies through pinned memory, in the order of the stream that computes: so what is computed from the former
    contents of `out` comes before a copy, and what is computed from the new ones after it.

    torch keeps pinned memory and hands it out again, and never while a copy that was started from or to it is under
    way. What `lift` copies to belongs to the returned function: nobody else has it until the host has read it.
    """

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        # Before whatever else is to be computed: the host waits for it.
        self._aside = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def down(self, values: NDArray[Any], out: Tensor | None = None) -> Tensor:
        source = torch.from_numpy(values).pin_memory()
        if out is None:
            return source.to(self._device, non_blocking=True)
        return out.copy_(source, non_blocking=True)

    def lift(self, values: Tensor) -> Callable[[], list[Any]]:
        target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        target.copy_(values, non_blocking=True)
        there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        there.record(torch.cuda.current_stream(self._device))

        def wait() -> list[Any]:
            start_s = time.perf_counter()
            there.synchronize()
            self.waits += 1
            self.waited_s += time.perf_counter() - start_s
            found: list[Any] = target.tolist()
            return found

        return wait

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    @contextmanager
    def beside(self) -> Iterator[None]:
        here = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._aside):
            yield
        here.wait_stream(self._aside)


@dataclass(frozen=True, slots=True)
class Execution:
    """The means by which the engine uses its device."""

    kernels: Kernels
    graphs: Graphs
    staging: Staging

    @property
    def plain(self) -> bool:
        """Nothing could be simpler: torch alone, operation by operation."""
        return self.kernels.name == Kernels.name and not self.graphs.fixed

    @property
    def described(self) -> str:
        return f"{self.kernels.name} {'with' if self.graphs.fixed else 'without'} graphs"


def for_device(device: torch.device, *, graphs: bool = True) -> Execution:
    """The means that suit a device: on a GPU our kernels and graphs, where Triton is, which comes with the builds of
    torch for CUDA."""
    kernels = Kernels()
    if device.type == "cuda":
        # It is chosen by version, generation and length of rows; the other backends compute any of them.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if find_spec("triton") is not None:
            from asr.engines.qwen.device.triton_kernels import Triton

            kernels = Triton()
    staging = Copying(device) if device.type == "cuda" else Staging()
    recorded = device.type == "cuda" and kernels.graphs and graphs
    return Execution(kernels, Captured(device) if recorded else Graphs(), staging)


def bucket(count: int, buckets: tuple[int, ...]) -> int | None:
    """The smallest of the ascending `buckets` that holds `count`; None when none does."""
    return next((each for each in buckets if count <= each), None)


def buckets(most: int) -> tuple[int, ...]:
    """Sizes up to `most` and it: 1, 2, 4, 8, then steps of a quarter to a half, so that little is computed in vain."""
    sizes = [size for power in range(3, 24) for size in (1 << power, 3 << (power - 1)) if size < most]
    return (*(size for size in (1, 2, 4) if size < most), *sizes, most)
