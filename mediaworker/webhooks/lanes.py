"""Which messages of an outbox are on their way, and how far a feed of them has come. No I/O."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class OutgoingMessage:
    """Something that a webhook has not taken yet."""

    id: str
    """`webhook-id`: the same in every try."""
    lane: str | None
    """Messages of one lane are sent in order, one at a time."""
    url: str
    body: Callable[[], str]
    """Made anew for each try."""
    time_s: float
    """Unix time of what it reports."""
    since_s: float = 0.0
    """Unix time from which its patience is counted; 0: from its first try."""
    tries: int = 0
    row: int = 0
    """Of an event: its row in the store."""


@dataclass(slots=True)
class _Lane:
    due_s: float
    messages: deque[OutgoingMessage] = field(default_factory=deque)
    busy: bool = False


class Lanes:
    """In each lane only the first message is on its way; while it waits for another try, the other lanes go on."""

    def __init__(self) -> None:
        self._lanes: dict[str | None, _Lane] = {}

    def __contains__(self, name: str | None) -> bool:
        return name in self._lanes

    @property
    def untried(self) -> bool:
        """Whether something has never been sent, or is being sent."""
        return any(lane.messages[0].tries == 0 or lane.busy for lane in self._lanes.values())

    @property
    def oldest_s(self) -> float | None:
        """The earliest `time_s` of what waits."""
        return min((lane.messages[0].time_s for lane in self._lanes.values()), default=None)

    def add(self, message: OutgoingMessage, due_s: float) -> None:
        """`due_s` counts for the first message of a lane."""
        self._lanes.setdefault(message.lane, _Lane(due_s)).messages.append(message)

    def ready(self, now_s: float, count: int) -> Iterator[OutgoingMessage]:
        """At most `count` to send now, longest due first; each is out until it is `done` or `again`."""
        free = (lane for lane in self._lanes.values() if not lane.busy and lane.due_s <= now_s)
        for lane in heapq.nsmallest(count, free, key=lambda lane: lane.due_s):
            lane.busy = True
            yield lane.messages[0]

    def next_due_s(self) -> float | None:
        return min((lane.due_s for lane in self._lanes.values() if not lane.busy), default=None)

    def done(self, message: OutgoingMessage, now_s: float) -> None:
        """The next message of its lane may go."""
        lane = self._lanes[message.lane]
        assert lane.messages.popleft() is message, "a lane's first message is done first"
        lane.busy, lane.due_s = False, now_s
        if not lane.messages:
            del self._lanes[message.lane]

    def again(self, message: OutgoingMessage, due_s: float) -> None:
        """Its lane waits; the others go on."""
        lane = self._lanes[message.lane]
        lane.busy, lane.due_s = False, due_s

    def forget(self, name: str | None) -> list[OutgoingMessage]:
        """Drop the lane, and return what was in it."""
        lane = self._lanes.pop(name, None)
        return [] if lane is None else list(lane.messages)


class FeedPlace:
    """How far a feed has read a store's rows, and up to where all of them are done. `limit` rows may be open."""

    def __init__(self, row: int, limit: int) -> None:
        self._limit = limit
        self.read_row = row
        """Everything up to here is open or done, or is of no interest."""
        self._open: OrderedDict[int, int] = OrderedDict()
        """Rows that are not done, in ascending order, and the row that was read before each."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= self._limit

    @property
    def done_row(self) -> int:
        """Everything up to here is done: to begin after it loses nothing, and repeats what is done beyond."""
        return next(iter(self._open.values()), self.read_row)

    def add(self, row: int) -> None:
        assert row > self.read_row, "rows ascend"
        self._open[row] = self.read_row
        self.read_row = row

    def skip_to(self, row: int) -> None:
        """There is nothing of interest up to here."""
        self.read_row = max(self.read_row, row)

    def done(self, row: int) -> None:
        del self._open[row]
