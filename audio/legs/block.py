"""The rings of 128 legs of one kind, narrow or wide, and the conversion of their windows to samples for the VAD."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audio.codecs import g711
from audio.codecs.codec import Codec
from audio.ring import AHEAD_WINDOWS, ROWS, WINDOW, WINDOWS, RingBuffer
from audio.vad.decimate import MEMORY, decimate

Rows = NDArray[np.intp]
Floats = NDArray[np.float32]


def _table() -> Floats:
    """Both G.711 laws as floats in [-1, 1), indexed by 256 · is A-law + code XOR silence."""
    codes = np.arange(256, dtype=np.uint8)
    laws = [g711.ULAW[codes ^ Codec.PCMU.silence], g711.ALAW[codes ^ Codec.PCMA.silence]]
    return np.concatenate(laws).astype(np.float32) / np.float32(32768)


_SAMPLES = _table()


class Block:
    """Rows for up to 128 legs. The arrays never move, so a leg may keep memoryviews of them."""

    def __init__(self, number: int, *, wide: bool) -> None:
        """`number`: among the rows of all blocks, this block's begin at 128 · `number`."""
        self.wide, self.base = wide, number * ROWS
        self.plane = RingBuffer(wide=wide)
        self._memory = np.zeros((ROWS, MEMORY), np.float32) if wide else None
        self._law = np.zeros((ROWS, 1), np.intp)
        self._free = list(range(ROWS))

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def free_rows(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """Allocate the lowest free row, all zero, so that due legs are close together."""
        return heapq.heappop(self._free)

    def free(self, row: int) -> None:
        if self._memory is not None:
            self._memory[row] = 0
        self.plane.clear(row)
        heapq.heappush(self._free, row)

    def describe(self, row: int, codec: Codec) -> None:
        self._law[row] = 256 if codec is Codec.PCMA else 0

    def window(self, row: int, start: int) -> NDArray[Any]:
        """The window in the plane that begins at position `start`, as a view."""
        window: NDArray[Any] = self.plane.windows[row, start // WINDOW % WINDOWS]
        return window

    def samples(self, rows: Rows, starts: NDArray[np.int64], out: Floats) -> NDArray[np.bool_]:
        """Consume the windows that begin at `starts`, and write them to `out` as 8 kHz samples in [-1, 1).

        Returns for each whether it is digital silence, which is never the case for wide blocks.
        """
        if self._memory is None:
            codes = self.plane.windows[rows, starts // WINDOW % WINDOWS]
            out[:] = _SAMPLES[codes + self._law[rows]]
            silent = np.logical_not(codes.any(axis=1))
        else:
            self._narrow(rows, starts, out)
            silent = np.zeros(len(rows), np.bool_)
        self._reach(rows, starts // WINDOW)
        return silent

    def skip(self, rows: Rows, starts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Consume those of these windows that are digital silence, and return which are. Not for wide blocks."""
        index = starts // WINDOW
        silent = np.logical_not(self.plane.windows[rows, index % WINDOWS].any(axis=1))
        self._reach(rows[silent], index[silent])
        return silent

    def _reach(self, rows: Rows, index: NDArray[np.int64]) -> None:
        """Zero the windows that come within reach next; on the first lap their memory is untouched and stays so."""
        used = index + AHEAD_WINDOWS >= WINDOWS
        if used.any():
            self.plane.windows[rows[used], (index[used] + AHEAD_WINDOWS) % WINDOWS] = 0

    def _narrow(self, rows: Rows, starts: NDArray[np.int64], out: Floats) -> None:
        """The due windows of a wide block at 8 kHz."""
        assert self._memory is not None
        wide = np.empty((len(rows), MEMORY + 2 * WINDOW), np.float32)
        wide[:, :MEMORY] = self._memory[rows]
        np.multiply(self.plane.windows[rows, starts // WINDOW % WINDOWS], np.float32(1 / 32768), out=wide[:, MEMORY:])
        self._memory[rows] = wide[:, -MEMORY:]
        decimate(wide, out)
