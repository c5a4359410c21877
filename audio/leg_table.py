"""The state of every leg that each packet and each tick needs, side by side: one array a field, one row a leg.

The plain packets of all legs are taken in a few array operations (`audio.fast_path`), and the due windows of all
legs are found in a few more (`audio.legs.block`). Whatever is rare works leg by leg on the very same cells.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import numpy as np

NEVER = float("inf")
UNKNOWN = float("nan")
_INTS = (
    "consumed", "received", "end", "next_sequence", "next_timestamp", "next_position", "ssrc", "packets", "head",
    "room", "silent",
)  # fmt: skip
_FLOATS = ("base_s", "origin_s", "transit", "min_transit", "jitter")
_ALL_BYTES = np.uint64(0x0101010101010101)
T = TypeVar("T", int, float)


class LegTable:
    """`rows` rows of zeros. The arrays stay where they are, so views of them may be kept."""

    def __init__(self, rows: int) -> None:
        self.consumed = np.zeros(rows, np.int64)
        """Position up to which windows have been taken: a multiple of 256."""
        self.received = np.zeros(rows, np.int64)
        """Position up to which nothing is missing."""
        self.base_s = np.zeros(rows)
        """A missing window goes on as silence at `base_s` plus its end in seconds; infinity: the leg waits."""
        self.end = np.zeros(rows, np.int64)
        """Past the latest received position."""
        self.next_sequence = np.zeros(rows, np.int64)
        self.next_timestamp = np.zeros(rows, np.int64)
        self.next_position = np.zeros(rows, np.int64)
        self.ssrc = np.zeros(rows, np.int64)
        self.packets = np.zeros(rows, np.int64)
        self.origin_s = np.zeros(rows)
        """When position 0 is; NaN: not yet."""
        self.transit = np.zeros(rows)
        """Arrival less position of the latest packet, in positions; NaN: not known."""
        self.min_transit = np.zeros(rows)
        self.jitter = np.zeros(rows)
        self.head = np.zeros(rows, np.int64)
        """The first 16 bits of the leg's plain packet without its marker; 0: no packet is plain."""
        self.room = np.zeros(rows, np.int64)
        """Positions in the leg's ring."""
        self.silent = np.zeros(rows, np.int64)
        """Windows in a row, up to the latest, that are digital silence."""
        self.mask = np.zeros(rows, np.uint64)
        """Eight times the code that is XORed over the leg's audio."""
        self.cells: dict[str, Any] = {name: memoryview(getattr(self, name)) for name in _INTS + _FLOATS}
        """The same memory, for one row at a time: an item costs a third of what an array's does."""

    def clear(self, row: int) -> None:
        for name in _INTS:
            self.cells[name][row] = 0
        for name in _FLOATS:
            self.cells[name][row] = 0.0
        self.cells["base_s"][row] = NEVER
        self.cells["origin_s"][row] = self.cells["transit"][row] = UNKNOWN
        self.mask[row] = 0

    def set_mask(self, row: int, code: int) -> None:
        """XOR this code over every byte of the row's audio."""
        self.mask[row] = np.uint64(code) * _ALL_BYTES

    def copy(self, row: int, other: LegTable, other_row: int) -> None:
        """Take over a row of this or another table."""
        for name in _INTS + _FLOATS:
            self.cells[name][row] = other.cells[name][other_row]
        self.mask[row] = other.mask[other_row]


class LegRow:
    """A row of a table, shared by all that belong to one leg: moving it moves them all."""

    __slots__ = ("cells", "row", "table")

    def __init__(self, table: LegTable | None = None, row: int = 0) -> None:
        """Without a table: a row of its own."""
        if table is None:
            table = LegTable(1)
            table.clear(0)
        self.table, self.row, self.cells = table, row, table.cells

    def move(self, table: LegTable, row: int) -> None:
        """Move to another row, values and all."""
        table.copy(row, self.table, self.row)
        self.table, self.row, self.cells = table, row, table.cells


class HasLegRow(Protocol):
    place: LegRow


class Cell(Generic[T]):
    """An attribute that lives in the owner's row."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: HasLegRow, kind: type | None = None) -> T:
        place = owner.place
        value: T = place.cells[self._name][place.row]
        return value

    def __set__(self, owner: HasLegRow, value: T) -> None:
        place = owner.place
        place.cells[self._name][place.row] = value


class KnownCell:
    """A float that may not be known yet: None outside, NaN in the row."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: HasLegRow, kind: type | None = None) -> float | None:
        place = owner.place
        value: float = place.cells[self._name][place.row]
        return None if value != value else value

    def __set__(self, owner: HasLegRow, value: float | None) -> None:
        place = owner.place
        place.cells[self._name][place.row] = UNKNOWN if value is None else value
