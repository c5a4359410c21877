"""What is in the store's file: its tables and how they came to be, and what is read from them as a whole."""

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
    # For retention: what ended first, without a walk through all calls.
    "CREATE INDEX calls_by_end ON calls (ended_at) WHERE ended_at IS NOT NULL;",
    # For those who look for a call by what was said in it; `_migrate` adds what is there already.
    search.SCHEMA,
)
SEARCHED_VERSION = 3
"""From this version on events are in the search index."""
OPEN_CALLS = """
    SELECT call_id FROM calls INDEXED BY open_calls
    WHERE json_extract(record, '$.state') <> 'ended' ORDER BY call_id
"""
"""The index alone is read, which holds the open calls and no others: a start is as fast after a year as after a day."""

RESERVED_ROWS = 10**11
"""Row ids that a start keeps for itself, on the disk before the first of them is seen. A power cut may take the last
events with it: whatever the clock says afterwards, their ids are not given to others."""
ROW_MAX = 10**17
"""A larger row id is damage."""

ERASED = "erased"
"""Type of a row whose event was erased. The row stays, empty, because its id is somebody's cursor."""


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
    """Where the store stands when it is opened."""

    store_id: str
    row: int
    """Highest row id; 0 when empty."""
    reserved: int
    """Row ids up to here may have been seen, though they are not in the file."""
    floor: int
    """Cursors below it have a gap behind them: events that could not be written were given up."""
    worker_seq: int
    """`seq` of the latest event without a call."""
    open_calls: tuple[CallRecord, ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """What goes over into a file that takes the place of a lost one."""

    meta: list[tuple[str, object]]
    rows: list[EventRow]
