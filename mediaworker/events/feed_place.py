"""How far a feed of events has come: each is sent on, and done when the other side has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict

from mediaworker.events.hub import EventHub
from mediaworker.events.store import StoreError

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


class PlaceKeeper:
    """Keeps the place of a feed in the hub's store, where the next start finds it."""

    def __init__(self, hub: EventHub, key: str) -> None:
        self._hub, self._key = hub, key
        self._saved = (-1, -1)
        """The row in the store, and in which of its files."""

    async def load(self) -> int | None:
        """None: the feed is new. Raises StoreError."""
        return await self._hub.read(lambda database: database.place(self._key))

    async def save(self, row: int) -> None:
        """Raises StoreError."""
        # While the disk is in trouble events go out before they are stored: a place among those would be no place.
        place = row, sum(self._hub.store.renewed.values())
        if place != self._saved and self._hub.trouble is None:
            await self._hub.maintain(lambda database: database.keep_place(self._key, row))
            self._saved = place

    async def save_often(self, place: FeedPlace) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(SAVE_S)
            with contextlib.suppress(StoreError):  # a full disk is reported elsewhere
                await self.save(place.done_row)
