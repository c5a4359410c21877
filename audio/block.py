"""128 legs of one kind, narrow or wide, side by side: the arrays that one step of the detector works on."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audio import g711
from audio.bank import EndpointBank
from audio.bulk import spread
from audio.codec import Codec
from audio.decimate import LAG, MEMORY, decimate
from audio.detections import Detection
from audio.plane import AHEAD_WINDOWS, ROWS, WINDOWS, Plane
from audio.table import NEVER, LegTable
from audio.vad import CONTEXT, HIDDEN, WINDOW, SileroVad

if TYPE_CHECKING:
    from audio.legs import Leg

Rows = NDArray[np.intp]
Floats = NDArray[np.float32]


def _table() -> Floats:
    """Both G.711 laws as floats in [-1, 1), indexed by 256 · is A-law + code XOR silence."""
    codes = np.arange(256, dtype=np.uint8)
    laws = [g711.ULAW[codes ^ Codec.PCMU.silence], g711.ALAW[codes ^ Codec.PCMA.silence]]
    return np.concatenate(laws).astype(np.float32) / np.float32(32768)


class Block:
    """Rows for up to 128 legs. All arrays stay where they are, so a leg may hold memoryviews of them."""

    def __init__(self, table: LegTable, number: int, *, wide: bool) -> None:
        """`number`: its rows are 128 · `number` and those after it in the table."""
        self.wide, self.table, self.base = wide, table, number * ROWS
        self.plane = Plane(wide=wide)
        self.bank = EndpointBank(ROWS)
        self.legs: list[Leg | None] = [None] * ROWS
        own = slice(self.base, self.base + ROWS)
        self.consumed, self.received, self.base_s = table.consumed[own], table.received[own], table.base_s[own]
        self.base_s[:] = NEVER
        self._hidden, self._cell = np.zeros((ROWS, HIDDEN), np.float32), np.zeros((ROWS, HIDDEN), np.float32)
        self._context = np.zeros((ROWS, CONTEXT), np.float32)
        self._memory = np.zeros((ROWS, MEMORY), np.float32) if wide else None
        self._table = _table()
        self._law = np.zeros((ROWS, 1), np.intp)
        self._free = list(range(ROWS))

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def free_rows(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """The lowest free row, all zero: due legs lie close together."""
        row = heapq.heappop(self._free)
        self.table.clear(self.base + row)
        return row

    def free(self, row: int) -> None:
        self.legs[row] = None
        self.table.clear(self.base + row)
        self._hidden[row] = self._cell[row] = self._context[row] = 0
        if self._memory is not None:
            self._memory[row] = 0
        self.plane.clear(row)
        heapq.heappush(self._free, row)

    def started(self, row: int) -> bool:
        """Missing windows go on as silence."""
        return bool(self.base_s[row] != NEVER)

    def window(self, row: int, start: int) -> NDArray[Any]:
        """The window in the plane that begins at position `start`, as a view."""
        window: NDArray[Any] = self.plane.windows[row, start // WINDOW % WINDOWS]
        return window

    def move(self, row: int, other: Block, other_row: int) -> None:
        """Take over the state of a row of another block, but for its row in the table; the ring starts empty."""
        for values, others in (
            (self._hidden, other._hidden), (self._cell, other._cell), (self._context, other._context)
        ):  # fmt: skip
            values[row] = others[other_row]
        self.bank.move(row, other.bank, other_row)

    def describe(self, row: int, codec: Codec) -> None:
        self._law[row] = 256 if codec is Codec.PCMA else 0
        self.table.mask[self.base + row] = spread(codec.silence)

    def skip_to(self, row: int, position: int) -> None:
        """Nothing before the window of `position` will be looked at. Only for a row that has consumed nothing."""
        assert self.consumed[row] == 0
        self.consumed[row] = self.received[row] = position // WINDOW * WINDOW
        self.bank.bar(row, int(self.consumed[row]))

    def horizon(self, now: float) -> NDArray[np.float64]:
        """Up to which position each row's windows are complete or overdue."""
        return np.maximum(self.received, (now - self.base_s) * 8000)

    def due(self, now: float, horizon: NDArray[np.float64]) -> Rows:
        """Rows whose next window is complete or overdue, and lies within `horizon`."""
        stop = self.consumed + WINDOW
        waiting = (self.received >= stop) | (now >= self.base_s + stop * 0.000125)
        return np.flatnonzero(waiting & (stop <= horizon + 0.5))  # half a sample: the clock's rounding

    def advance(self, rows: Rows, vad: SileroVad) -> list[Detection]:
        """Take the next window of each of `rows` (ascending) through decoder, VAD and endpointing."""
        starts = self.consumed[rows]
        stops = starts + WINDOW
        for row in rows[self.received[rows] < stops].tolist():
            if (leg := self.legs[row]) is not None and leg.gapped:
                leg.give_up(int(self.consumed[row]) + WINDOW)
        index = starts // WINDOW
        samples = vad.input(len(rows))
        # A full block is the rule under load: a slice then gives views where an index array would copy.
        chosen: Rows | slice = slice(int(rows[0]), int(rows[-1]) + 1) if rows[-1] - rows[0] < len(rows) else rows
        samples[:, :CONTEXT] = self._context[chosen]
        if self._memory is None:
            codes = self.plane.windows[rows, index % WINDOWS]
            samples[:, CONTEXT:] = self._table[codes + self._law[chosen]]
        else:
            self._narrow(rows, chosen, starts, samples[:, CONTEXT:])
        self._context[chosen] = samples[:, -CONTEXT:]
        hidden, cell = self._hidden[chosen], self._cell[chosen]
        probabilities = vad.forward(samples, hidden, cell)
        if not isinstance(chosen, slice):
            self._hidden[chosen], self._cell[chosen] = hidden, cell
        # Zero what comes into reach next; on the first lap it is untouched memory and stays so.
        used = index + AHEAD_WINDOWS >= WINDOWS
        if used.any():
            self.plane.windows[rows[used], (index[used] + AHEAD_WINDOWS) % WINDOWS] = 0
        self.consumed[chosen] = stops
        heard_at = np.maximum(starts - LAG, 0) if self.wide else starts
        return self.bank.step(rows, heard_at, probabilities, self.legs)

    def _narrow(self, rows: Rows, chosen: Rows | slice, starts: NDArray[np.int64], out: Floats) -> None:
        """The due windows of a wide block at 8 kHz."""
        assert self._memory is not None
        for row, start in zip(rows.tolist(), starts.tolist(), strict=True):
            if (leg := self.legs[row]) is not None and leg.codec is Codec.G722:
                leg.decode_window(start, start + WINDOW)
        wide = np.empty((len(rows), MEMORY + 2 * WINDOW), np.float32)
        wide[:, :MEMORY] = self._memory[chosen]
        np.multiply(self.plane.windows[rows, starts // WINDOW % WINDOWS], np.float32(1 / 32768), out=wide[:, MEMORY:])
        self._memory[chosen] = wide[:, -MEMORY:]
        decimate(wide, out)
