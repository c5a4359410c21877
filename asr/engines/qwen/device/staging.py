"""The way between the host and the device: down once for the inputs of a piece of work, up once for its result.

`down` and `lift` do not wait. What `lift` returns does: it is the only place where the host waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.engines.qwen.device.interface import Staging


class Direct:
    """The device is the host."""

    def __init__(self) -> None:
        self.waits, self.waited_s = 0, 0.0
        self.asynchronous = False

    def down(self, values: NDArray[Any], out: Tensor | None = None) -> Tensor:
        source = torch.from_numpy(values)
        return source if out is None else out.copy_(source)

    def lift(self, values: Tensor) -> Callable[[], list[Any]]:
        found: list[Any] = values.tolist()

        def wait() -> list[Any]:
            self.waits += 1
            return found

        return wait

    def settle(self) -> None:
        pass

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext()


class Copying:
    """Through pinned memory, in the order of the stream that computes: so what is computed from the former contents of
    `out` comes before a copy, and what is computed from the new ones after it.

    torch keeps pinned memory and hands it out again, and never while a copy that was started from or to it is under
    way. What `lift` copies to belongs to the returned function: nobody else has it until the host has read it.
    """

    def __init__(self, device: torch.device) -> None:
        self.waits, self.waited_s = 0, 0.0
        self.asynchronous = True
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


def staging(device: torch.device) -> Staging:
    return Copying(device) if device.type == "cuda" else Direct()
