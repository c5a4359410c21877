"""The position of a feed that passes stored events on to another system, and the reader that follows the hub for it.

A row is open from when it is read until the other side has acknowledged its event. The position survives a restart, so
the feed continues with the first row that was not acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable

from config.process.tasks import lasting
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import BODIES, tag_of
from mediaworker.events.store import StoreError
from mediaworker.events.subscription import Cursor, ResumeError, SubscriptionClosed

DURABLE = frozenset(tag_of(kind) for kind in BODIES if kind.DURABLE)
SAVE_S = 1.0


class FeedPlace:
    """The row up to which a feed has read a store, and the row up to which all events are done. No I/O.

    At most `limit` rows may be open.
    """

    def __init__(self, row: int, limit: int) -> None:
        self._limit = limit
        self.read_row = row
        """Every row up to here is open, done or skipped."""
        self._open: OrderedDict[int, tuple[int, float]] = OrderedDict()
        """The open rows in ascending order. The value is the row that was read before it, and its time."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= self._limit

    @property
    def done_row(self) -> int:
        """Every row up to here is done. A feed that begins after it loses nothing; it repeats the rows beyond that are
        done already."""
        return self._first[0]

    @property
    def oldest_s(self) -> float | None:
        """The time of the first open row; None when no row is open."""
        return self._first[1] if self._open else None

    @property
    def _first(self) -> tuple[int, float]:
        return next(iter(self._open.values()), (self.read_row, 0.0))

    def add(self, row: int, time_s: float) -> None:
        """Open a row. `time_s`: the time of the event, or the time of reading it by the feed's clock."""
        assert row > self.read_row, "rows ascend"
        self._open[row] = self.read_row, time_s
        self.read_row = row

    def skip_to(self, row: int) -> None:
        """Count every row up to `row` as read: none of them is of interest."""
        self.read_row = max(self.read_row, row)

    def done(self, row: int) -> None:
        del self._open[row]


class FeedReader:
    """Follows the hub's durable events from a place that the hub's store keeps for the next start.

    When the hub or the store ends its subscription, the reader subscribes again after the place. It does the same once
    there is room, after it has closed a subscription because no more rows may be open.

    Args:
        key: the name under which the store keeps the place.
        limit: the most rows that may be open.
        pause_s: the time between the end of a subscription and the next one.
    """

    def __init__(self, hub: EventHub, key: str, *, limit: int, pause_s: float) -> None:
        self._hub, self._key, self._limit, self._pause_s = hub, key, limit, pause_s
        self._place = FeedPlace(0, limit)
        self._store_id = ""
        self._room = asyncio.Event()
        """Set when a row is done."""
        self._saved = (-1, -1)
        """The row that was saved last, and the number of renewals of the store at that time: a renewed file has lost
        the place."""
        self._tasks: list[asyncio.Task[None]] = []

    # -- hooks of each feed -------------------------------------------------------------------------------------------

    async def _on_frame(self, row: int, frame: str, *, more: bool) -> None:
        """Send a frame on. `row` is the place after it, and unchanged for a frame that is not durable; `more`: the
        next frame is waiting already."""
        raise NotImplementedError

    def _forget(self, call_id: str) -> None:
        """Drop the unsent events of a call that has been erased."""
        raise NotImplementedError

    def _on_again(self, reason: str) -> None:
        """Called when the subscription has ended and will begin again."""
        raise NotImplementedError

    def _on_skipped(self, reason: str) -> None:
        """Called when events have expired, or were erased, before they could be read."""
        raise NotImplementedError

    @property
    def _full(self) -> bool:
        """True while the feed must not read on."""
        return self._place.full

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _load(self, new_row: int) -> None:
        """Load the place; a new feed begins after `new_row`. Raises StoreError."""
        saved = await self._hub.read(lambda database: database.place(self._key))
        self._store_id = self._hub.cursor.store_id
        self._place = FeedPlace(new_row if saved is None else saved, self._limit)
        self._hub.ended_calls.on_erased.append(self._forget)

    def _begin(self) -> None:
        self._tasks = [lasting(self._read, f"{self._key}: read"), lasting(self._save_often, f"{self._key}: remember")]

    async def _save(self) -> None:
        """Store the place when it has changed. Raises StoreError."""
        row = self._place.done_row
        # While the disk is in trouble the hub shows events before they are stored. A place among them would point to
        # rows that may never exist, so it is not saved until the trouble is over.
        place = row, sum(self._hub.store.renewed.values())
        if place != self._saved and self._hub.trouble is None:
            await self._hub.store.write(lambda database: database.keep_place(self._key, row))
            self._saved = place

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            with contextlib.suppress(StoreError):  # the event log reports a full disk
                await self._save()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            try:
                await self._follow()
            except ResumeError as error:
                floor = self._hub.event_log.floor
                self._place.skip_to(floor if floor > self._place.read_row else self._hub.cursor.row)
                self._on_skipped(error.reason)
            except (SubscriptionClosed, StoreError) as error:
                self._on_again(str(error))
            await asyncio.sleep(self._pause_s)

    async def _follow(self) -> None:
        """Read one subscription until it ends or the feed is full; then wait until the feed has room."""
        after = Cursor(self._store_id, self._place.read_row)
        # All durable types, also those that the feed does not send: each of them advances the place.
        subscription = self._hub.subscribe(after=str(after), types=DURABLE)
        try:
            async for frame in subscription:
                await self._on_frame(subscription.cursor.row, frame, more=bool(subscription.waiting))
                if self._full:
                    break
        finally:
            subscription.close()
        await self._until(lambda: not self._full)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true; it is checked whenever a row is done."""
        while not condition():
            self._room.clear()
            await self._room.wait()
