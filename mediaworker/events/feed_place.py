"""How far a feed of events has come: each is sent on, and done when the other side has it. No I/O."""

from __future__ import annotations

from collections import OrderedDict


class FeedPlace:
    """How far a feed has read a store's rows, and up to where all of them are done. `limit` rows may be open."""

    def __init__(self, row: int, limit: int) -> None:
        self._limit = limit
        self.read_row = row
        """Everything up to here is open or done, or is of no interest."""
        self._open: OrderedDict[int, tuple[int, float]] = OrderedDict()
        """Rows that are not done, in ascending order; of each, the row that was read before it, and its time."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= self._limit

    @property
    def done_row(self) -> int:
        """Everything up to here is done: to begin after it loses nothing, and repeats what is done beyond."""
        return self._first[0]

    @property
    def oldest_s(self) -> float | None:
        """The time of the first row that is not done; None: all are."""
        return self._first[1] if self._open else None

    @property
    def _first(self) -> tuple[int, float]:
        return next(iter(self._open.values()), (self.read_row, 0.0))

    def add(self, row: int, time_s: float) -> None:
        """`time_s`: of the event, or when it was read, by the clock of the feed."""
        assert row > self.read_row, "rows ascend"
        self._open[row] = self.read_row, time_s
        self.read_row = row

    def skip_to(self, row: int) -> None:
        """There is nothing of interest up to here."""
        self.read_row = max(self.read_row, row)

    def done(self, row: int) -> None:
        del self._open[row]
