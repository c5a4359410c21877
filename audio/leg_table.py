"""The part of all legs' state that every packet and every tick needs: one array per field, one row per leg.

A few array operations store the plain packets of all legs (`audio.fast_path`), and a few more find the due windows of
all legs (`audio.legs.block`). Code for rare cases works leg by leg on the same cells.
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
    """A table with `rows` rows of zeros. The arrays never move, so views of them may be kept."""

    def __init__(self, rows: int) -> None:
        self.consumed = np.zeros(rows, np.int64)
        """The position up to which windows have been consumed, a multiple of 256."""
        self.received = np.zeros(rows, np.int64)
        """The position up to which no audio is awaited."""
        self.base_s = np.zeros(rows)
        """A missing window becomes silence at `base_s` plus its end in seconds; infinity if the leg waits for ever."""
        self.end = np.zeros(rows, np.int64)
        """The position after the latest received one."""
        self.next_sequence = np.zeros(rows, np.int64)
        self.next_timestamp = np.zeros(rows, np.int64)
        self.next_position = np.zeros(rows, np.int64)
        self.ssrc = np.zeros(rows, np.int64)
        self.packets = np.zeros(rows, np.int64)
        self.origin_s = np.zeros(rows)
        """The time of position 0; NaN before it is known."""
        self.transit = np.zeros(rows)
        """The arrival less the position of the latest packet, in positions; NaN if unknown."""
        self.min_transit = np.zeros(rows)
        self.jitter = np.zeros(rows)
        self.head = np.zeros(rows, np.int64)
        """The first 16 bits of the leg's plain packets without the marker bit; 0 if no packet is plain."""
        self.room = np.zeros(rows, np.int64)
        """The number of positions in the leg's ring."""
        self.silent = np.zeros(rows, np.int64)
        """The number of latest windows in a row that are digital silence."""
        self.mask = np.zeros(rows, np.uint64)
        """The code that is XORed over the leg's audio, repeated eight times."""
        self.cells: dict[str, Any] = {name: memoryview(getattr(self, name)) for name in _INTS + _FLOATS}
        """The same memory as memoryviews, for access to single rows: an item costs a third of an array's."""

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
        """Copy a row of this or another table to `row`."""
        for name in _INTS + _FLOATS:
            self.cells[name][row] = other.cells[name][other_row]
        self.mask[row] = other.mask[other_row]


class LegRow:
    """A row of a table, shared by all objects of one leg: moving it moves them all."""

    __slots__ = ("cells", "row", "table")

    def __init__(self, table: LegTable | None = None, row: int = 0) -> None:
        """`table`: the table of the row; without one the row gets a table of its own."""
        if table is None:
            table = LegTable(1)
            table.clear(0)
        self.table, self.row, self.cells = table, row, table.cells

    def move(self, table: LegTable, row: int) -> None:
        """Move to another row, together with the values."""
        table.copy(row, self.table, self.row)
        self.table, self.row, self.cells = table, row, table.cells


class HasLegRow(Protocol):
    place: LegRow


class Cell(Generic[T]):
    """An attribute that is stored in the owner's row."""

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
    """A float attribute that may be unknown: None for the owner, NaN in the row."""

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
