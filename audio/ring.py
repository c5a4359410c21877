"""The rings of all legs, in planes: one array for 128 legs, addressed by row, window and offset.

A row is 40.96 s long. A packet is stored at the place its timestamp names, which makes the ring the reorder buffer; a
window is decoded when it is due. Of the row, the latest `HISTORY` positions that have been consumed can be read back,
and `AHEAD` positions from there on can be written: each of their places was zeroed before it came into reach, and zero
is silence. Narrow rows hold G.711 codes XORed with the codec's silence, wide rows int16 at 16 kHz.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW = 256
"""Positions per window."""
WINDOWS = 1280
"""Windows per row: whole pages for every page size up to 64 KiB."""
RING = WINDOWS * WINDOW
AHEAD_WINDOWS = 308
AHEAD = AHEAD_WINDOWS * WINDOW
"""9.9 s: how far behind the consumed audio the latest writable position lies."""
HISTORY = RING - AHEAD
"""31.1 s: the longest utterance with its pre-roll."""
ROWS = 128


class RingBuffer:
    """`windows`: (128, 1280, 256 · n) of uint8 (narrow, n = 1) or int16 (wide, n = 2); `codes` and `longs`: the same
    memory, flat, as bytes and as words of 8 bytes.

    The memory is reserved, not used: a page is taken when its first packet comes and given back when its leg closes.
    numpy's own zeros would ask the kernel for huge pages, and one leg would then hold megabytes.
    """

    def __init__(self, *, wide: bool) -> None:
        self.position_bytes = 4 if wide else 1
        self._row_bytes = RING * self.position_bytes
        self._memory = mmap.mmap(-1, ROWS * self._row_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        dtype = np.int16 if wide else np.uint8
        self.windows: NDArray[Any] = np.frombuffer(self._memory, dtype).reshape(ROWS, WINDOWS, -1)
        self.codes: NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8)
        self.longs: NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64)

    def row(self, row: int) -> memoryview:
        """The row's bytes, writable."""
        return memoryview(self._memory)[row * self._row_bytes : (row + 1) * self._row_bytes]

    def clear(self, row: int) -> None:
        """Zero a row by giving its pages back (madvise(2): private anonymous pages read as zeros afterwards)."""
        self._memory.madvise(mmap.MADV_DONTNEED, row * self._row_bytes, self._row_bytes)


def store(ring: memoryview, start: int, data: bytes) -> None:
    """Copy `data` into the ring at byte `start`, which counts on without end; it is shorter than the ring."""
    size = len(ring)
    offset = start % size
    first = size - offset
    if len(data) <= first:
        ring[offset : offset + len(data)] = data
    else:
        ring[offset:] = data[:first]
        ring[: len(data) - first] = data[first:]


def load(ring: memoryview, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of the ring, at most its length."""
    size = len(ring)
    offset = start % size
    end = offset + stop - start
    return bytes(ring[offset:end]) if end <= size else bytes(ring[offset:]) + bytes(ring[: end - size])
