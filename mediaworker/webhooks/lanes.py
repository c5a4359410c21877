"""Which messages of an outbox are on their way. No I/O."""

from __future__ import annotations

import heapq
from collections import deque
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

    def add(self, message: OutgoingMessage, due_s: float) -> None:
        """`due_s` counts for the first message of a lane."""
        self._lanes.setdefault(message.lane, _Lane(due_s)).messages.append(message)

    def ready(self, now_s: float, count: int) -> Iterator[OutgoingMessage]:
        """At most `count` to send now, those that were never refused first, then longest due first; each is out until
        it is `done` or `again`."""
        free = (lane for lane in self._lanes.values() if not lane.busy and lane.due_s <= now_s)
        for lane in heapq.nsmallest(count, free, key=lambda lane: (lane.messages[0].tries > 0, lane.due_s)):
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
