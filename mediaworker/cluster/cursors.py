"""Cursors of a cluster's events: their places in the shared stream, and in the store of the worker they come from."""

from __future__ import annotations

import re

from mediaworker.events.schema import CallRecord, Event, type_of
from mediaworker.events.subscription import MAX_SEEN, Cursor, Entry

_CURSOR = re.compile(r'"cursor":"([^"]*)"')


def closer_of(worker: str) -> str:
    """The id that replaces a worker's in the cursors of events that another worker wrote on its behalf.

    No worker has such an id.
    """
    return f"{worker}x"


def origin(frame: str) -> Cursor:
    """The event's place in the store of the worker that produced it, from a frame of this store. Raises EventError."""
    found = _CURSOR.search(frame)
    return Cursor.parse(found[1].rpartition(":")[0].replace(".", ":") if found else "")


def stamp(frame: str, cursor: str) -> str:
    """The frame with this cursor instead of its own."""
    return _CURSOR.sub(f'"cursor":"{cursor}"', frame, count=1)


def stored(row: int, after: CallRecord | None, event: Event, frame: str, place: Cursor, now_s: float) -> Entry:
    """An event of the stream as it is stored, with its original place and its place in this store.

    `after` is the record of its call after the event; None if the event belongs to no existing call.
    """
    frame = stamp(frame, f"{place.store_id}.{place.row}:{row}")
    call_id = None if after is None else after.call_id
    return Entry(row, call_id, event.seq, type_of(event.body), frame, now_s, record=after, origin=place)


def merged(own: tuple[tuple[str, int], ...], resumed: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The later of both places for each worker, limited to the number that a cursor may have."""
    found = dict(resumed)
    for store_id, row in own:
        found[store_id] = max(row, found.get(store_id, 0))
    return tuple(found.items())[-MAX_SEEN:]
