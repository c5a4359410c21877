"""Lanes of an outbox: queues of messages that are sent in order within a lane. No I/O."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class OutgoingMessage:
    """A message that has not been delivered yet."""

    id: str
    """The header `webhook-id`, which is the same in every attempt."""
    lane: str | None
    """The name of its lane: the messages of one lane are sent in order, one at a time."""
    url: str
    body: Callable[[], str]
    """Returns the body; called for each attempt."""
    since_s: float = 0.0
    """Unix time from which the time for retries counts; 0: from the first attempt."""
    tries: int = 0
    row: int = 0
    """The row of an event in the store; 0 for a job."""


@dataclass(slots=True)
class _Lane:
    due_s: float
    messages: deque[OutgoingMessage] = field(default_factory=deque)
    busy: bool = False


class Lanes:
    """All lanes of an outbox. Only the first message of a lane is being sent; while it waits for a retry, its lane
    waits and the other lanes go on."""

    def __init__(self) -> None:
        self._lanes: dict[str | None, _Lane] = {}

    def __contains__(self, name: str | None) -> bool:
        return name in self._lanes

    @property
    def untried(self) -> bool:
        """True while a message has never been tried, or is being sent."""
        return any(lane.messages[0].tries == 0 or lane.busy for lane in self._lanes.values())

    def add(self, message: OutgoingMessage, due_s: float) -> None:
        """Append a message to its lane. `due_s`: the time before which a new lane does not send."""
        self._lanes.setdefault(message.lane, _Lane(due_s)).messages.append(message)

    def ready(self, now_s: float, count: int) -> Iterator[OutgoingMessage]:
        """Yield at most `count` messages to send now: first those that were never refused, then those that have been
        due the longest. The lane of each is busy until `done` or `again` is called."""
        free = (lane for lane in self._lanes.values() if not lane.busy and lane.due_s <= now_s)
        for lane in heapq.nsmallest(count, free, key=lambda lane: (lane.messages[0].tries > 0, lane.due_s)):
            lane.busy = True
            yield lane.messages[0]

    def next_due_s(self) -> float | None:
        return min((lane.due_s for lane in self._lanes.values() if not lane.busy), default=None)

    def done(self, message: OutgoingMessage, now_s: float) -> None:
        """Remove a delivered or given up message; the next one of its lane may be sent."""
        lane = self._lanes[message.lane]
        assert lane.messages.popleft() is message, "a lane's first message is done first"
        lane.busy, lane.due_s = False, now_s
        if not lane.messages:
            del self._lanes[message.lane]

    def again(self, message: OutgoingMessage, due_s: float) -> None:
        """Keep a message for a retry; its lane waits until `due_s`."""
        lane = self._lanes[message.lane]
        lane.busy, lane.due_s = False, due_s

    def forget(self, name: str | None) -> list[OutgoingMessage]:
        """Drop a lane and return its messages."""
        lane = self._lanes.pop(name, None)
        return [] if lane is None else list(lane.messages)
