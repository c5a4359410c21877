"""Streams and events of a GPU on a CPU: every operation of torch is noted on the stream that it is started on, and one
that reads or writes memory before it may, in the order that streams and events give, is an error.

The CPU computes at once, so values are right; what is modelled is what a GPU would have been free to do. An operation
is a (stream, number), and a clock says how far each stream has come that something is ordered behind (vector clocks).
Memory is followed by storage, but for tables whose rows belong to different owners, which are followed by row. A GPU's
memory is handed out again in the order of the stream that it was taken on: a tensor must not die while another stream
may still use it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Clock = dict[int, int]


def merge(one: Clock, other: Clock) -> None:
    for stream, number in other.items():
        one[stream] = max(one.get(stream, 0), number)


class Stream:
    def __init__(self, number: int) -> None:
        self.number = number
        self.clock: Clock = {number: 0}

    def wait_stream(self, other: Stream) -> None:
        merge(self.clock, other.clock)

    def wait_event(self, event: Event) -> None:
        merge(self.clock, event.clock)


class Event:
    gpu: Gpu

    def __init__(self) -> None:
        self.clock: Clock = {}

    def record(self, stream: Stream) -> None:
        self.clock = dict(stream.clock)

    def synchronize(self) -> None:
        known = self.gpu.host
        self.gpu.waits.append({stream for stream, number in self.clock.items() if known.get(stream, 0) < number})
        merge(self.gpu.host, self.clock)


class _Memory:
    """Of one storage, or of a row of a table."""

    __slots__ = ("readers", "writer")

    def __init__(self) -> None:
        self.writer: tuple[int, int] | None = None
        self.readers: Clock = {}


class Race(AssertionError):
    pass


class Gpu(TorchDispatchMode):
    """`main` is the stream that everything is started on that is not said to be on another."""

    def __init__(self) -> None:
        super().__init__()
        self.main = Stream(0)
        self.streams = [self.main]
        self.current = [self.main]
        self.host: Clock = {}
        """What the host has waited for."""
        self.waits: list[set[int]] = []
        """Of the host: the streams that each was for."""
        self.operations = 0
        self._memory: dict[int, dict[int | None, _Memory]] = {}
        self._home: dict[int, tuple[Stream, Clock]] = {}
        """The stream on which a storage was taken, and who has used it since."""
        self._tables: dict[int, int] = {}
        self.pinned = set[int]()
        self.races: list[str] = []
        """Of memory that was free too early."""
        self.at_work = True

    def stream(self, *args: Any, **more: Any) -> Stream:
        self.streams.append(Stream(len(self.streams)))
        return self.streams[-1]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self.current.append(stream)
        try:
            yield
        finally:
            self.current.pop()

    def table(self, tensor: Tensor, width: int) -> None:
        """Rows of `width` of it are followed each by itself, in `index` and `index_copy_`."""
        self._tables[tensor.untyped_storage()._cdata] = width

    # -- operations -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.is_view:
            return out
        stream = self.current[-1]
        written = list(_tensors(out))
        read = []
        values = [*args, *(kwargs or {}).values()]
        names = [*func._schema.arguments[: len(args)], *(_named(func, name) for name in kwargs or {})]
        for value, argument in zip(values, names, strict=True):
            changed = argument.alias_info is not None and argument.alias_info.is_write
            (written if changed else read).extend(_tensors(value))
        merge(stream.clock, self.host)  # what the host has waited for was over before it started this
        stream.clock[stream.number] += 1
        self.operations += 1
        for tensor in read:
            for memory in self._of(tensor, func, args, stream):
                self._ordered(stream, memory.writer, func, "reads what is not written yet")
                memory.readers[stream.number] = stream.clock[stream.number]
        for tensor in written:
            for memory in self._of(tensor, func, args, stream):
                self._ordered(stream, memory.writer, func, "overwrites what is still being written")
                for reader in memory.readers.items():
                    self._ordered(stream, reader, func, "overwrites what is still being read")
                memory.writer, memory.readers = (stream.number, stream.clock[stream.number]), {}
        return out

    def _ordered(self, stream: Stream, operation: tuple[int, int] | None, func: Any, what: str) -> None:
        if operation is not None and stream.clock.get(operation[0], 0) < operation[1]:
            raise Race(f"{func} on stream {stream.number} {what} on stream {operation[0]}")

    def _of(self, tensor: Tensor, func: Any, args: Any, stream: Stream) -> list[_Memory]:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._memory:
            self._memory[key], self._home[key] = {}, (stream, {})
            weakref.finalize(storage, self._died, key)
        self._home[key][1][stream.number] = stream.clock[stream.number]
        rows: list[int | None] = [None]
        if (width := self._tables.get(key)) is not None and tensor is args[0]:
            each = tensor.stride(0) // width
            if "index_copy" in str(func):
                rows = list(args[2].numpy().tolist())
            elif func is torch.ops.aten.index.Tensor:
                rows = [page * each + at for page in args[1][0].numpy().tolist() for at in range(each)]
        return [self._memory[key].setdefault(row, _Memory()) for row in rows]

    def _died(self, key: int) -> None:
        """Its memory may be handed out to whatever is started next on the stream that it was taken on."""
        del self._memory[key]
        home, users = self._home.pop(key)
        if key in self.pinned:  # torch waits for the copies
            self.pinned.discard(key)
            return
        if not self.at_work:
            return
        late = {number: last for number, last in users.items() if home.clock.get(number, 0) < last}
        if late:
            self.races.append(f"memory of stream {home.number} is free while stream {min(late)} may use it")

    # -- the host ---------------------------------------------------------------------------------------------------

    def read(self, tensor: Tensor) -> None:
        """The host looks at pinned memory."""
        for memory in self._memory.get(tensor.untyped_storage()._cdata, {}).values():
            if memory.writer is not None and self.host.get(memory.writer[0], 0) < memory.writer[1]:
                raise Race(f"the host reads what stream {memory.writer[0]} has not written yet")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _named(func: Any, name: str) -> Any:
    return next(argument for argument in func._schema.arguments if argument.name == name)


@contextmanager
def gpu() -> Iterator[Gpu]:
    """`torch.cuda` is this one's, and pinned memory and copies from and to it are."""
    made = Gpu()
    Event.gpu = made
    to, empty, tolist = Tensor.to, torch.empty, Tensor.tolist

    def pinned(tensor: Tensor) -> Tensor:
        with torch.utils._python_dispatch._disable_current_modes():
            copy = tensor.clone()
        made.pinned.add(copy.untyped_storage()._cdata)
        return copy

    def moved(tensor: Tensor, *args: Any, non_blocking: bool = False, **more: Any) -> Tensor:
        return tensor.clone() if non_blocking else to(tensor, *args, **more)

    def taken(*args: Any, pin_memory: bool = False, **more: Any) -> Tensor:
        if not pin_memory:
            return empty(*args, **more)
        with torch.utils._python_dispatch._disable_current_modes():
            out = empty(*args, **more)
        made.pinned.add(out.untyped_storage()._cdata)
        return out

    def listed(tensor: Tensor) -> Any:
        made.read(tensor)
        return tolist(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Stream", made.stream)
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "current_stream", lambda *_: made.current[-1])
        patch.setattr(torch.cuda, "stream", made.on)
        patch.setattr(
            torch.cuda,
            "synchronize",
            lambda *_: [merge(each.clock, other.clock) for each in made.streams for other in made.streams],
        )
        patch.setattr(Tensor, "pin_memory", pinned)
        patch.setattr(Tensor, "to", moved)
        patch.setattr(Tensor, "tolist", listed)
        patch.setattr(torch, "empty", taken)
        yield made
