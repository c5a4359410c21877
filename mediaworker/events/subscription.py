"""One subscriber's queue at the hub: which events wait in it, which are dropped when the subscriber is slow, and when
the hub closes it.

A subscription first catches up from the hub's history, in pages and at the subscriber's own pace, and then goes live:
from there the hub offers it every event, and events that the subscriber has not read yet wait in its queue. The queue
is bounded. Of the partials only the newest per utterance waits; when the queue is full, partials are dropped, and
`lagged` reports their number. A durable event that does not fit ends the subscription, because the durable events of a
subscriber may have no gap.

When the subscriber keeps up, `offer` sends each event directly. No task wakes up, neither then nor when an event is
queued for a subscriber that does not read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mediaworker.errors import MediaworkerError
from mediaworker.events.schema import CallRecord, EventError

OVERRUN = 4008
EXPIRED = 4009
GOING_AWAY = 1001
MAX_SEEN = 8
"""The most workers that a cursor of a cluster may name."""


class SubscriptionClosed(MediaworkerError):
    """The subscription has ended; `code` and `reason` are for the WebSocket's close frame."""

    def __init__(self, code: int, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(f"{code} {reason}")


class ResumeError(SubscriptionClosed):
    """The cursor to resume after is unknown here or has expired (4009)."""

    def __init__(self, reason: str) -> None:
        super().__init__(EXPIRED, reason)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a store: the one after the event in row `row`. Row 0 is before the first event."""

    store_id: str
    row: int
    seen: tuple[tuple[str, int], ...] = ()
    """In a cluster: (store id, row) of other workers, named by their own stores, whose events the subscriber has seen
    up to these rows although they reached this store only after `row`."""

    def __str__(self) -> str:
        return f"{self.store_id}:{self.row}" + "".join(f".{store_id}.{row}" for store_id, row in self.seen)

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the cursor of a text that `__str__` made. Raises EventError."""
        first, *more = text.split(".")
        if not more:
            return cls._plain(text)
        if len(more) % 2 or len(more) > 2 * MAX_SEEN:
            raise EventError("a cursor of a cluster is <id>:<row>, and <store id>.<row> for each worker")
        seen = [cls._plain(f"{store_id}:{row}") for store_id, row in zip(more[::2], more[1::2], strict=True)]
        plain = cls._plain(first)
        return cls(plain.store_id, plain.row, tuple((each.store_id, each.row) for each in seen))

    @classmethod
    def _plain(cls, text: str) -> Cursor:
        store_id, colon, row = text.partition(":")
        if not (colon and store_id.isalnum() and store_id.isascii() and row.isascii() and row.isdigit()):
            raise EventError("a cursor is <store id>:<row id>")
        if len(row) > 18 or str(int(row)) != row:  # one spelling, and it fits SQLite's integer
            raise EventError("a cursor's row id is a plain number")
        return cls(store_id, int(row))


@dataclass(frozen=True, slots=True)
class Entry:
    """An event on its way to the subscribers. It is encoded once; every subscriber is sent the same string."""

    row: int | None
    """Row id of a durable event; None for the others, which keep their order among the durable ones."""
    call_id: str | None
    seq: int
    type: str
    frame: str
    published_s: float
    replaces: str | None = None
    """The key of a transient event; a newer entry with the same key replaces a waiting one. None: the event is
    durable."""
    record: CallRecord | None = None
    """The call's record after this event; None for non-durable events and those without a call."""
    origin: Cursor | None = None
    """In a cluster: the event's place in the store of the worker whose call it belongs to."""
    cursor: Cursor | None = None
    """The cursor of a subscriber that has read this event; None: the place after `row`."""

    @property
    def durable(self) -> bool:
        return self.replaces is None


class EventHistory(Protocol):
    """The hub as a subscription sees it while it catches up."""

    def check(self, subscription: Subscription) -> Awaitable[None]: ...

    def page(self, subscription: Subscription) -> Awaitable[Sequence[tuple[int, str]]]: ...

    def detach(self, subscription: Subscription) -> None: ...


class Subscription:
    """An asynchronous iterator of frames; `hello` is the first. Made by `EventHub.subscribe`.

    Iteration ends when `close` is called, and raises SubscriptionClosed: 4008 (the subscriber is too slow; the reason
    is the cursor to resume after), 4009 (ResumeError), 1001 (the hub stops).
    """

    def __init__(
        self,
        history: EventHistory,
        *,
        call: str | None,
        types: frozenset[str] | None,
        limit: int,
        hello: str,
        cursor: Cursor,
        replay: bool,
        lagged: Callable[[str, int], str],
    ) -> None:
        self.call = call
        self.types = types
        self.cursor = cursor
        """The place up to which all events have been handed out."""
        self.resumed = cursor
        """The place at which the subscription began."""
        self.scanned = cursor.row
        """While the subscription catches up: the row up to which the hub has searched for its frames."""
        self.live = False
        """Set by the hub when the subscription has caught up."""
        self.send_at_once: Callable[[str], bool] | None = None
        """Sends a frame while nothing is queued before it, without waking the iterating task. It returns False when the
        connection has no room or is closing; the event is then queued like any other."""
        self.dropped = 0
        self.overrun = False
        self._history, self._limit, self._lagged = history, limit, lagged
        self._hello: str | None = hello
        self._unchecked = replay
        self._page: deque[tuple[int, str]] = deque()
        self._arrivals = 0
        # Ordered by arrival. Durable entries are keyed by a running number, transient ones by `replaces`.
        self._waiting: OrderedDict[int | str, Entry] = OrderedDict()
        self._dropped_since = 0
        self._closed: SubscriptionClosed | None = None
        self._done = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of events that can be handed out at once."""
        return len(self._page) + len(self._waiting)

    @property
    def _idle(self) -> bool:
        """True while all events have been handed out and the iterating task waits for the next one."""
        return self._waiter is not None and not self._waiter.done()

    def wants(self, entry: Entry) -> bool:
        return (self.types is None or entry.type in self.types) and (self.call is None or entry.call_id == self.call)

    def offer(self, entry: Entry) -> None:
        """Send or queue an event; the hub calls it for every event once the subscription is live. Never blocks."""
        if self._closed is not None or self._done or not self.wants(entry):
            return
        if self._idle and self.send_at_once is not None and self.send_at_once(entry.frame):
            self._hand_out(entry)
            return
        if not entry.durable:
            self._offer_transient(entry)
        elif len(self._waiting) < self._limit or self._shed():
            self._arrivals += 1
            self._waiting[self._arrivals] = entry
        else:
            self._waiting.clear()
            self.overrun = True
            self._closed = SubscriptionClosed(OVERRUN, str(self.cursor))
        self._wake()

    def end(self, code: int, reason: str) -> None:
        """Called when the hub stops: waiting events are still handed out, then SubscriptionClosed is raised."""
        if self._closed is None:
            self._closed = SubscriptionClosed(code, reason)
        self._wake()

    def close(self) -> None:
        """Detach from the hub and drop all waiting events. Idempotent."""
        self._done = True
        self._waiting.clear()
        self._page.clear()
        self._history.detach(self)
        self._wake()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> str:
        try:
            return await self._next_frame()
        except SubscriptionClosed:
            self.close()
            raise

    async def _next_frame(self) -> str:
        if self._unchecked:
            await self._history.check(self)
            self._unchecked = False
        while not self._done:
            if (frame := self._pop()) is not None:
                return frame
            if self._closed is not None:
                raise self._closed
            if not self.live:
                self._page.extend(await self._history.page(self))
                continue
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        raise StopAsyncIteration

    def _pop(self) -> str | None:
        if self._hello is not None:
            hello, self._hello = self._hello, None
            return hello
        while self._page:
            row, frame = self._page.popleft()
            self._advance(row)
            if frame:  # an event that is damaged on the disk has an empty frame
                return frame
        if self._dropped_since:
            dropped, self._dropped_since = self._dropped_since, 0
            return self._lagged(str(self.cursor), dropped)
        if self._waiting:
            entry = self._waiting.popitem(last=False)[1]
            self._hand_out(entry)
            return entry.frame
        return None

    def _offer_transient(self, entry: Entry) -> None:
        assert entry.replaces is not None
        # Removed and appended again: in its predecessor's place it would overtake durable events.
        if self._waiting.pop(entry.replaces, None) is None and len(self._waiting) >= self._limit:
            self._drop(1)
        else:
            self._waiting[entry.replaces] = entry

    def _shed(self) -> bool:
        """Make room for a durable event by dropping all transient ones; return whether there were any."""
        transient = [key for key, entry in self._waiting.items() if not entry.durable]
        for key in transient:
            del self._waiting[key]
        self._drop(len(transient))
        return bool(transient)

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._dropped_since += count

    def _hand_out(self, entry: Entry) -> None:
        if entry.cursor is not None:
            self.cursor = entry.cursor
        elif entry.row is not None:
            self._advance(entry.row)

    def _advance(self, row: int) -> None:
        self.cursor = Cursor(self.cursor.store_id, row, self.cursor.seen)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
