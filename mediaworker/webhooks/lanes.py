"""Which events of one webhook are on their way: one lane a call, in each only the first event at a time. No I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice


@dataclass(slots=True)
class Item:
    """An event that has not been taken yet."""

    row: int
    call_id: str | None
    frame: str
    time_s: float
    """Unix time at which it was said."""
    tries: int = 0
    first_s: float = 0.0
    """Of its first try."""


@dataclass(slots=True)
class _Lane:
    items: deque[Item] = field(default_factory=deque)
    due_s: float = 0.0
    busy: bool = False


class Lanes:
    """`limit` events may wait; the reader asks `full` before it adds more."""

    def __init__(self, row: int, limit: int) -> None:
        self._limit = limit
        self.read_row = row
        """Everything up to here has been added, or is of no interest."""
        self._open: OrderedDict[int, int] = OrderedDict()
        """Rows that are not done, in the order in which they were added, and the row that was read before each."""
        self._lanes: dict[str | None, _Lane] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= self._limit

    @property
    def done_row(self) -> int:
        """Everything up to here is done: to begin after it loses nothing, and repeats what is done beyond."""
        return next(iter(self._open.values()), self.read_row)

    @property
    def untried(self) -> bool:
        return any(lane.items[0].tries == 0 or lane.busy for lane in self._lanes.values())

    @property
    def oldest_s(self) -> float | None:
        """When the oldest of the waiting events was said."""
        return min((lane.items[0].time_s for lane in self._lanes.values()), default=None)

    def add(self, item: Item) -> None:
        assert item.row > self.read_row, "rows ascend"
        self._open[item.row] = self.read_row
        self.read_row = item.row
        self._lanes.setdefault(item.call_id, _Lane()).items.append(item)

    def passed(self, row: int) -> None:
        """Nothing of interest up to here."""
        self.read_row = max(self.read_row, row)

    def ready(self, now_s: float, count: int) -> Iterator[Item]:
        """At most so many to send now; each is out until `done` or `again` is said of it."""
        lanes = (lane for lane in self._lanes.values() if not lane.busy and lane.due_s <= now_s)
        for lane in islice(lanes, count):
            lane.busy = True
            yield lane.items[0]

    def next_due_s(self) -> float | None:
        return min((lane.due_s for lane in self._lanes.values() if not lane.busy), default=None)

    def done(self, item: Item) -> None:
        lane = self._lanes[item.call_id]
        assert lane.items.popleft() is item, "a lane's first event is done first"
        del self._open[item.row]
        lane.busy, lane.due_s = False, 0.0
        if not lane.items:
            del self._lanes[item.call_id]

    def forget(self, call_id: str) -> None:
        """The call has been erased: what is not under way is not sent any more."""
        if (lane := self._lanes.get(call_id)) is None:
            return
        kept = 1 if lane.busy else 0
        while len(lane.items) > kept:
            del self._open[lane.items.pop().row]
        if not lane.items:
            del self._lanes[call_id]

    def again(self, item: Item, due_s: float) -> None:
        """Its lane waits; the others go on."""
        lane = self._lanes[item.call_id]
        lane.busy, lane.due_s = False, due_s
