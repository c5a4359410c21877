"""What is done to calls that have ended: their legs are named, and their events are erased or expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mediaworker.events.event_log import EventLog
from mediaworker.events.schema import CallRecord
from mediaworker.events.store import EventStore, StoreError

EXPIRE_ROWS = 200
EXPIRE_PAUSE_S = 0.005
"""A live commit waits behind at most one such piece of retention, and the disk is not kept busy with them."""


class EndedCalls:
    """On the hub's event loop; the store's writer does the work, a piece at a time."""

    def __init__(self, event_log: EventLog, store: EventStore) -> None:
        self._event_log, self._store = event_log, store
        self.on_erased: list[Callable[[str], None]] = []
        """Called with the id of a call whose events are gone."""

    async def rename(self, call_id: str, names: dict[str, str]) -> CallRecord | None:
        """Names for the legs of a call that has ended; no event tells of it. Raises StoreError."""
        await self._settle(call_id)
        return await self._store.write(lambda database: database.rename(call_id, names))

    async def erase(self, call_id: str) -> None:
        """Remove an ended call's events and record from the disk and from memory. Raises StoreError."""
        await self._settle(call_id)
        await self._store.write(lambda database: database.erase(call_id))
        self._forget(call_id)
        await self.purge()

    async def purge(self) -> None:
        """Take the words of what was erased out of the search index, a piece at a time. Raises StoreError."""
        more = await self._store.write(lambda database: database.purge(begin=True))
        while more:
            await asyncio.sleep(EXPIRE_PAUSE_S)
            more = await self._store.write(lambda database: database.purge(begin=False))

    async def expire(self, call_id: str, last_row: int) -> int:
        """Take an ended call's events off the disk for good, a few at a time; returns how many rows went.

        `last_row` is its last event's: cursors before it expire. Raises StoreError.
        """
        self._event_log.raise_floor(last_row)
        removed, gone = 0, False
        while not gone:
            rows, gone = await self._store.write(lambda database: database.expire(call_id, EXPIRE_ROWS))
            removed += rows
            await asyncio.sleep(EXPIRE_PAUSE_S)
        self._forget(call_id)
        return removed

    def _forget(self, call_id: str) -> None:
        self._event_log.forget(call_id)
        for erased in self.on_erased:
            erased(call_id)

    async def _settle(self, call_id: str) -> None:
        await self._event_log.flush()
        if self._event_log.holds(call_id):
            raise StoreError(self._event_log.trouble or "the call is still being written")
