"""What each process of files spends, from the kernel's own books: the media side (this process), the children that read
files, and the inference process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 0.05
"""A reader's peak is what was last seen of it; it grows in its first moments."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Cpu:
    """Seconds of CPU time."""

    media: float = 0.0
    readers: float = 0.0
    inference: float = 0.0


@dataclass(slots=True)
class Peak:
    """Resident memory, MB."""

    media: float = 0.0
    reader: float = 0.0
    """The largest one."""
    inference: float = 0.0


class Meter:
    """What is spent while it is `watching`.

    Args:
        inference: its process, which must live all the time; readers come and go and are counted when they have gone.
    """

    def __init__(self, inference: int) -> None:
        self._inference = inference
        self.cpu, self.peak = Cpu(), Peak()

    @contextlib.asynccontextmanager
    async def watching(self, readers: Callable[[], Iterable[int]] = tuple) -> AsyncIterator[None]:
        """`readers`: those at work just now."""
        _forget_peak()
        before = self._spent()
        looking = asyncio.create_task(self._look(readers))
        try:
            yield
        finally:
            looking.cancel()
            after = self._spent()
            names = ("media", "readers", "inference")
            self.cpu = Cpu(*(getattr(after, name) - getattr(before, name) for name in names))
            self.peak.media, self.peak.inference = _peak_mb(os.getpid()), _peak_mb(self._inference)

    def _spent(self) -> Cpu:
        own, gone = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        fields = Path(f"/proc/{self._inference}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # utime and stime, proc(5): fields 14 and 15, from 1 and before ")"
        return Cpu(own.ru_utime + own.ru_stime, gone.ru_utime + gone.ru_stime, ticks / _TICKS_PER_S)

    async def _look(self, readers: Callable[[], Iterable[int]]) -> None:
        while True:
            for pid in readers():
                with contextlib.suppress(OSError, StopIteration):  # it has ended just now
                    self.peak.reader = max(self.peak.reader, _peak_mb(pid))
            await asyncio.sleep(LOOK_S)


def _forget_peak() -> None:
    """What this process has done before does not count: proc(5), VmHWM is reset."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024
