"""Changes to calls that have ended: their legs are named, and their events are erased or expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mediaworker.events.event_log import EventLog
from mediaworker.events.schema import CallRecord
from mediaworker.events.store import EventStore, StoreError

EXPIRE_ROWS = 200
EXPIRE_PAUSE_S = 0.005
"""Rows deleted by one transaction of retention, and the pause after it. A live commit waits behind at most one such
transaction, and the pauses leave the disk to the calls."""


class EndedCalls:
    """Renames, erases and expires ended calls. It runs on the hub's event loop; the store's writer does the work in
    small pieces."""

    def __init__(self, event_log: EventLog, store: EventStore) -> None:
        self._event_log, self._store = event_log, store
        self.on_erased: list[Callable[[str], None]] = []
        """Called with the id of each call whose events have been erased or have expired."""

    async def rename(self, call_id: str, names: dict[str, str]) -> CallRecord | None:
        """Name the legs of a call that has ended. No event is published for it. Raises StoreError."""
        await self._settle(call_id)
        return await self._store.write(lambda database: database.rename(call_id, names))

    async def erase(self, call_id: str) -> None:
        """Remove an ended call's events and record from the disk and from memory. Raises StoreError."""
        await self._settle(call_id)
        await self._store.write(lambda database: database.erase(call_id))
        self._forget(call_id)
        await self.purge()

    async def purge(self) -> None:
        """Remove the words of erased events from the search index, a piece at a time. Raises StoreError."""
        more = await self._store.write(lambda database: database.purge(begin=True))
        while more:
            await asyncio.sleep(EXPIRE_PAUSE_S)
            more = await self._store.write(lambda database: database.purge(begin=False))

    async def expire(self, call_id: str, last_row: int) -> int:
        """Delete an ended call's events, a few at a time; return the number of rows deleted.

        `last_row` is the row of its last event: cursors before it expire. Raises StoreError.
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
