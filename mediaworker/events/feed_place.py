"""How far a feed of events has come: each is sent on, and done when the other side has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable

from config.tasks import lasting
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import BODIES, tag_of
from mediaworker.events.store import StoreError
from mediaworker.events.subscription import Cursor, ResumeError, SubscriptionClosed

DURABLE = frozenset(tag_of(kind) for kind in BODIES if kind.DURABLE)
SAVE_S = 1.0


class FeedPlace:
    """How far a feed has read a store's rows, and up to where all of them are done. No I/O.

    `limit` rows may be open.
    """

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

    def skip_gone(self, hub: EventHub) -> None:
        """What the hub had behind `read_row` is no longer stored."""
        floor = hub.event_log.floor
        self.skip_to(floor if floor > self.read_row else hub.cursor.row)

    def done(self, row: int) -> None:
        del self._open[row]


class FeedReader:
    """Follows what is durable at the hub, behind a place that the hub's store keeps for the next start.

    A subscription that the hub or the store ends is begun anew behind the place; so is one that was closed because no
    more rows may be open.

    Args:
        key: under which the store keeps the place.
        limit: rows that may be open.
        pause_s: from the end of a subscription to the next one.
    """

    def __init__(self, hub: EventHub, key: str, *, limit: int, pause_s: float) -> None:
        self._hub, self._key, self._limit, self._pause_s = hub, key, limit, pause_s
        self._place = FeedPlace(0, limit)
        self._store_id = ""
        self._room = asyncio.Event()
        """Set when something is done."""
        self._saved = (-1, -1)
        """The row in the store, and in which of its files."""
        self._tasks: list[asyncio.Task[None]] = []

    # -- what each feed does with the events --------------------------------------------------------------------------

    async def _on_frame(self, row: int, frame: str, *, more: bool) -> None:
        """`frame` came with the place `row`, which is not new for what is not durable. `more`: the next one waits."""
        raise NotImplementedError

    def _forget(self, call_id: str) -> None:
        """The call has been erased: no more of it is sent."""
        raise NotImplementedError

    def _on_again(self, reason: str) -> None:
        """The subscription was ended, and is begun again."""
        raise NotImplementedError

    def _on_skipped(self, reason: str) -> None:
        """Events had expired, or were erased, before they could be read."""
        raise NotImplementedError

    @property
    def _full(self) -> bool:
        """No more is read."""
        return self._place.full

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _load(self, new_row: int) -> None:
        """Find the place; a feed that is new begins behind `new_row`. Raises StoreError."""
        saved = await self._hub.read(lambda database: database.place(self._key))
        self._store_id = self._hub.cursor.store_id
        self._place = FeedPlace(new_row if saved is None else saved, self._limit)
        self._hub.ended_calls.on_erased.append(self._forget)

    def _begin(self) -> None:
        self._tasks = [lasting(self._read, f"{self._key}: read"), lasting(self._save_often, f"{self._key}: remember")]

    async def _save(self) -> None:
        """Raises StoreError."""
        row = self._place.done_row
        # While the disk is in trouble events go out before they are stored: a place among those would be no place.
        place = row, sum(self._hub.store.renewed.values())
        if place != self._saved and self._hub.trouble is None:
            await self._hub.store.write(lambda database: database.keep_place(self._key, row))
            self._saved = place

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            with contextlib.suppress(StoreError):  # a full disk is reported elsewhere
                await self._save()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            try:
                await self._follow()
            except ResumeError as error:
                self._place.skip_gone(self._hub)
                self._on_skipped(error.reason)
            except (SubscriptionClosed, StoreError) as error:
                self._on_again(str(error))
            await asyncio.sleep(self._pause_s)

    async def _follow(self) -> None:
        """Until the hub or the store ends it, or too much is open; and then until there is room."""
        after = Cursor(self._store_id, self._place.read_row)
        # All that is durable: what is not wanted moves the place on.
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
        """Asked again whenever something is done."""
        while not condition():
            self._room.clear()
            await self._room.wait()
