"""The rings of all legs, in planes: one array for 128 legs, addressed by row, window and offset.

A row is 40.96 s long. A packet is stored at the place that its timestamp determines, so the ring is also the reorder
buffer; a window is decoded when it is due. The latest `HISTORY` consumed positions of a row can be read back, and the
`AHEAD` positions after them can be written. Each place is zeroed before it comes within reach, and zero is silence.
Narrow rows hold G.711 codes XORed with the codec's silence, wide rows int16 at 16 kHz.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW = 256
"""Positions per window."""
WINDOWS = 1280
"""The windows per row, which are whole pages for every page size up to 64 KiB."""
RING = WINDOWS * WINDOW
AHEAD_WINDOWS = 308
AHEAD = AHEAD_WINDOWS * WINDOW
"""How far the latest writable position lies after the consumed audio: 9.9 s."""
HISTORY = RING - AHEAD
"""How much consumed audio can be read back: 31.1 s, the longest utterance with its pre-roll."""
ROWS = 128


class RingBuffer:
    """The rings of 128 legs.

    `windows`: (128, 1280, 256 · n) of uint8 (narrow, n = 1) or int16 (wide, n = 2); `codes` and `longs`: the same
    memory, flat, as bytes and as words of 8 bytes.

    The memory is only reserved: a page is allocated by its first packet and freed when its leg closes. With numpy's own
    zeros the kernel would use huge pages, and a single leg would occupy megabytes.
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
    """Copy `data`, shorter than the ring, to byte `start` modulo the ring's length."""
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
