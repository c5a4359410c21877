"""The SQLite file behind the store: schema, migrations, and every query. No threads; each thread opens its own.

`events` holds the frames as they went out, so that a replay encodes nothing. `calls` holds one record per call, written
in the transaction of the events it sums up; its columns are generated from the record.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mediaworker.events.schema import CallRecord
from mediaworker.sqlite import SqliteFile

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
)

ERASED = "erased"
"""Type of a row whose event was erased. The row stays, empty, because its id is somebody's cursor."""

REWRITE_BYTES = 1_000_000_000
"""A start should take seconds: a larger file is not written anew to learn how to shrink."""

_record_decoder = msgspec.json.Decoder(CallRecord)
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Row:
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
    floor: int
    """Cursors below it have a gap behind them: events that could not be written were given up."""
    worker_seq: int
    """`seq` of the latest event without a call."""
    open_calls: tuple[CallRecord, ...]


class Database(SqliteFile):
    """See `SqliteFile`."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._floor = 0
        """As written to the file."""
        super().__init__(path, MIGRATIONS, read_only=read_only)

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, rows: Iterable[Row], records: Iterable[CallRecord], floor: int) -> None:
        """Rows and the call records that sum them up, in one transaction."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO events (id, call_id, seq, type, json) VALUES (?, ?, ?, ?, ?)",
                ((row.id, row.call_id, row.seq, row.type, row.frame) for row in rows),
            )
            self._connection.executemany(
                "INSERT OR REPLACE INTO calls (call_id, record) VALUES (?, ?)",
                ((record.call_id, _encoder.encode(record).decode()) for record in records),
            )
            if raised := floor > self._floor:
                self._raise_floor(floor)
        self._floor = floor if raised else self._floor

    def rename(self, call_id: str, names: Mapping[str, str]) -> CallRecord | None:
        """Names of legs of an ended call."""
        record = self.call(call_id)
        if record is not None:
            legs = [msgspec.structs.replace(leg, name=names.get(leg.leg, leg.name)) for leg in record.legs]
            record = msgspec.structs.replace(record, legs=legs)
            self.append((), (record,), 0)
        return record

    def erase(self, call_id: str) -> None:
        """Everything that was said in the call, and by whom."""
        with self._transaction():
            self.execute(
                f"UPDATE events SET call_id = NULL, seq = 0, type = '{ERASED}', json = '' WHERE call_id = ?", (call_id,)
            )
            self.execute("DELETE FROM calls WHERE call_id = ?", (call_id,))
        # Until the log is checkpointed the old pages are still in it.
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def expire(self, call_id: str, limit: int) -> tuple[int, bool]:
        """Take at most `limit` rows of an ended call away for good, and those without a call that are older.

        Cursors before the call's last row are expired from then on. Returns how many rows went, and whether the call is
        gone; call it again until it is.
        """
        found = self.execute("SELECT max(id) FROM events WHERE call_id = ?", (call_id,)).fetchone()[0]
        floor, removed = max(found or 0, self._floor), 0
        with self._transaction():
            self._raise_floor(floor)
            # The newest event without a call stays: it holds their `seq`.
            newest = "SELECT id FROM events WHERE call_id IS NULL AND seq > 0 ORDER BY id DESC LIMIT 1"
            for where, argument in (
                ("call_id = ?", call_id),
                (f"call_id IS NULL AND id <= ? AND id <> ifnull(({newest}), 0)", floor),
            ):
                query = f"DELETE FROM events WHERE id IN (SELECT id FROM events WHERE {where} ORDER BY id LIMIT ?)"
                removed += self.execute(query, (argument, limit - removed)).rowcount
            left = self.execute("SELECT 1 FROM events WHERE call_id = ? LIMIT 1", (call_id,)).fetchone() is not None
            if not left:
                self.execute("DELETE FROM calls WHERE call_id = ?", (call_id,))
        self._floor = floor
        return removed, not left

    def shrink(self, pages: int) -> bool:
        """Give at most `pages` free pages back to the file system; whether there are more."""
        # One row per page that moves: without fetching them nothing happens.
        self.execute(f"PRAGMA incremental_vacuum({pages:d})").fetchall()
        return bool(self.free_pages) and self._pragma("auto_vacuum") == 2

    def checkpoint(self) -> None:
        """Into the file with what the log holds, as far as no reader is in the way; nobody is waited for."""
        self.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _raise_floor(self, floor: int) -> None:
        self.execute("INSERT OR REPLACE INTO meta VALUES ('floor', ?)", (floor,))

    def keep_place(self, name: str, row: int) -> None:
        """How far somebody has come who goes on after a restart."""
        self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"place {name}", row))

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """What is in the file, without what it could give back."""
        return (self._pragma("page_count") - self.free_pages) * self._pragma("page_size")

    @property
    def free_pages(self) -> int:
        return self._pragma("freelist_count")

    def place(self, name: str) -> int | None:
        """What `keep_place` has kept; the row before it when that one is not there."""
        found = self.execute("SELECT value FROM meta WHERE key = ?", (f"place {name}",)).fetchone()
        if found is None:
            return None
        row = self.execute("SELECT max(id) FROM events WHERE id <= ?", (found[0],)).fetchone()[0]
        return int(found[0] if row is None else row)

    @property
    def rows(self) -> int:
        """Events stored. Walks through an index: not for every scrape."""
        return int(self.execute("SELECT count(*) FROM events").fetchone()[0])

    def ended(self, before: str | None, limit: int) -> list[tuple[str, int]]:
        """(call, its highest row) of calls that ended before that time, or at any; what ended first comes first."""
        query = "SELECT call_id FROM calls WHERE ended_at IS NOT NULL AND ended_at < ? ORDER BY ended_at LIMIT ?"
        found = self.execute(query, ("~" if before is None else before, limit)).fetchall()
        rows = "SELECT max(id) FROM events WHERE call_id = ?"
        return [(call_id, self.execute(rows, (call_id,)).fetchone()[0] or 0) for (call_id,) in found]

    def head(self) -> Head:
        meta = dict(self.execute("SELECT key, value FROM meta").fetchall())
        self._floor = int(meta.get("floor", 0))
        row = self.execute("SELECT max(id) FROM events").fetchone()[0]
        seq = self.execute("SELECT max(seq) FROM events WHERE call_id IS NULL").fetchone()[0]
        query = "SELECT record FROM calls WHERE json_extract(record, '$.state') <> 'ended' ORDER BY call_id"
        records = tuple(_record_decoder.decode(record) for (record,) in self.execute(query))
        # Rows that expired counted too: no later event may get their numbers.
        return Head(str(meta["store_id"]), max(row or 0, self._floor), self._floor, seq or 0, records)

    def has_row(self, row: int) -> bool:
        return self.execute("SELECT 1 FROM events WHERE id = ?", (row,)).fetchone() is not None

    def page(
        self, after: int, until: int, limit: int, *, call_id: str | None = None, types: frozenset[str] | None = None
    ) -> list[tuple[int, str]]:
        """(row id, frame) of at most `limit` events with `after < id <= until`, oldest first."""
        where, parameters = ["id > ?", "id <= ?", f"type <> '{ERASED}'"], [after, until]
        arguments: list[object] = [*parameters]
        if call_id is not None:
            where.append("call_id = ?")
            arguments.append(call_id)
        if types is not None:
            where.append(f"type IN ({', '.join('?' * len(types))})")
            arguments.extend(sorted(types))
        query = f"SELECT id, json FROM events WHERE {' AND '.join(where)} ORDER BY id LIMIT ?"
        return self.execute(query, (*arguments, limit)).fetchall()

    def call(self, call_id: str) -> CallRecord | None:
        found = self.execute("SELECT record FROM calls WHERE call_id = ?", (call_id,)).fetchone()
        return None if found is None else _record_decoder.decode(found[0])

    def calls(self, limit: int, after: str | None = None) -> list[CallRecord]:
        """Newest first (ids are UUIDv7), at most `limit`, older than the call `after`."""
        where, arguments = ("WHERE call_id < ?", (after, limit)) if after is not None else ("", (limit,))
        query = f"SELECT record FROM calls {where} ORDER BY call_id DESC LIMIT ?"
        return [_record_decoder.decode(record) for (record,) in self.execute(query, arguments)]

    def frames(self, call_id: str, types: frozenset[str]) -> list[str]:
        """A call's durable events of these types, in order."""
        return [frame for _, frame in self.page(0, 2**63 - 1, -1, call_id=call_id, types=types)]

    def _migrate(self, migrations: Sequence[str]) -> None:
        super()._migrate(migrations)
        # Short, and without what a URL would have to escape: it stands in every cursor.
        self.execute("INSERT OR IGNORE INTO meta VALUES ('store_id', ?)", (secrets.token_hex(4),))
        if self._pragma("auto_vacuum") != 2 and self.used_bytes <= REWRITE_BYTES:
            # A file from before retention: written anew once, after which it can shrink. Without the room for that it
            # stays as it is, and what is erased in it is used again.
            with contextlib.suppress(sqlite3.OperationalError):
                self.execute("PRAGMA auto_vacuum = INCREMENTAL")
                self.execute("VACUUM")
