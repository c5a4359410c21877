"""The way between the host and the device: down once for the inputs of a piece of work, up once for its result.

`down` and `lift` do not wait. What `lift` returns does: it is the only place where the host waits for the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.engines.qwen.device.interface import Staging

AHEAD = 8
"""Copies that may be under way from one size of host memory before the host waits for the first of them."""


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


@dataclass(slots=True)
class _Pinned:
    host: Tensor
    free: torch.cuda.Event
    """Nothing reads or writes `host` once it has happened."""


class Copying:
    """Through pinned memory and a stream of its own, beside what the device computes."""

    def __init__(self, device: torch.device) -> None:
        self.waits, self.waited_s = 0, 0.0
        self.asynchronous = True
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pinned: dict[tuple[int, torch.dtype], deque[_Pinned]] = {}

    def down(self, values: NDArray[Any], out: Tensor | None = None) -> Tensor:
        source = torch.from_numpy(values)
        pinned = self._take(source.numel(), source.dtype)
        pinned.host[: source.numel()].copy_(source.reshape(-1))
        here = torch.cuda.current_stream(self._device)
        if out is not None:
            self._stream.wait_stream(here)  # what is computed from the former contents comes first
        with torch.cuda.stream(self._stream):
            if out is None:
                out = torch.empty(source.shape, dtype=source.dtype, device=self._device)
                out.record_stream(here)
            out.copy_(pinned.host[: source.numel()].view(source.shape), non_blocking=True)
            pinned.free.record(self._stream)
        here.wait_event(pinned.free)
        return out

    def lift(self, values: Tensor) -> Callable[[], list[Any]]:
        pinned = self._take(values.numel(), values.dtype)
        target = pinned.host[: values.numel()].view(values.shape)
        target.copy_(values, non_blocking=True)
        pinned.free.record(torch.cuda.current_stream(self._device))

        def wait() -> list[Any]:
            start_s = time.perf_counter()
            pinned.free.synchronize()
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

    def _take(self, count: int, dtype: torch.dtype) -> _Pinned:
        """Pinning takes the driver long: memory is taken in powers of two and used in turn."""
        size = 1 << max(0, count - 1).bit_length()
        turns = self._pinned.setdefault((size, dtype), deque())
        if len(turns) < AHEAD:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            turns.append(_Pinned(torch.empty(size, dtype=dtype, pin_memory=True), event))
        else:
            turns.rotate(-1)
            turns[-1].free.synchronize()  # it has long happened
        return turns[-1]


def staging(device: torch.device) -> Staging:
    return Copying(device) if device.type == "cuda" else Direct()
