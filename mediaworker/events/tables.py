"""The tables of the event store's file, with every migration that leads to them, and the records read from them."""

from __future__ import annotations

from dataclasses import dataclass

from mediaworker.events import search
from mediaworker.events.schema import CallRecord

# Each entry brings the file from version n to n + 1 (PRAGMA user_version). Never edit one that was released.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
    CREATE TABLE events (
        id INTEGER PRIMARY KEY,
        call_id TEXT,
        seq INTEGER NOT NULL,
        type TEXT NOT NULL,
        json TEXT NOT NULL
    );
    CREATE INDEX events_by_call ON events (call_id, id);
    CREATE TABLE calls (
        call_id TEXT PRIMARY KEY,
        record TEXT NOT NULL,
        state TEXT AS (json_extract(record, '$.state')),
        source TEXT AS (json_extract(record, '$.source')),
        external_id TEXT AS (json_extract(record, '$.external_id')),
        from_ TEXT AS (json_extract(record, '$.from')),
        to_ TEXT AS (json_extract(record, '$.to')),
        started_at TEXT AS (json_extract(record, '$.started_at')),
        ended_at TEXT AS (json_extract(record, '$.ended_at')),
        legs TEXT AS (json_extract(record, '$.legs'))
    ) WITHOUT ROWID;
    CREATE INDEX open_calls ON calls (call_id) WHERE json_extract(record, '$.state') <> 'ended';
    """,
    # Retention finds the calls that ended first without a scan of all calls.
    "CREATE INDEX calls_by_end ON calls (ended_at) WHERE ended_at IS NOT NULL;",
    # The search index; `Database._migrate` fills it with the events that are stored already.
    search.SCHEMA,
)
SEARCHED_VERSION = 3
"""The first version of the file whose events are in the search index."""
OPEN_CALLS = """
    SELECT call_id FROM calls INDEXED BY open_calls
    WHERE json_extract(record, '$.state') <> 'ended' ORDER BY call_id
"""
"""Reads only the partial index `open_calls`, so a start is as fast after a year of calls as after a day."""

RESERVED_ROWS = 10**11
"""The number of row ids that a start reserves, synced to the disk before a subscriber sees the first of them. A power
cut may lose the last events; the next start begins above the reserved ids, so whatever the clock then shows, no later
event has the id of a lost one."""
ROW_MAX = 10**17
"""A row id of this size or above shows that the file is damaged."""

ERASED = "erased"
"""Type of a row whose event was erased. The row stays, empty, because its id may be a subscriber's cursor."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """A durable event as it is stored. `id` is the second half of its cursor."""

    id: int
    call_id: str | None
    seq: int
    type: str
    frame: str


@dataclass(frozen=True, slots=True)
class Head:
    """The state of the store when it is opened."""

    store_id: str
    row: int
    """The highest row id; 0 when the store is empty."""
    reserved: int
    """Subscribers may have seen row ids up to here, although they are not in the file."""
    floor: int
    """Cursors below this row are expired: events after them were erased, or were given up because the disk refused
    them."""
    worker_seq: int
    """The `seq` of the latest event without a call."""
    open_calls: tuple[CallRecord, ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """The contents of a lost file that its replacement begins with."""

    meta: list[tuple[str, object]]
    rows: list[EventRow]
