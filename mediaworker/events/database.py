"""The SQLite file of the event store: every query on the tables that `tables` defines.

The table `events` holds the frames as they were sent, so that a replay encodes nothing. The table `calls` holds one
record per call, written in the transaction of the events that it sums up; its columns are generated from the record.
A `Database` is used by one thread only; each thread opens its own.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from mediaworker.events import call_record as calls
from mediaworker.events import search, tables
from mediaworker.events.frame import Envelope, decode
from mediaworker.events.schema import CallRecord, EventError
from mediaworker.storage.sqlite import SqliteFile, UnusableDatabase

INDEX_BYTES = 100_000_000
"""Up to this file size a damaged search index is rebuilt from the stored events, which blocks the writer meanwhile.
With a larger file the index begins empty, so that live events need not wait."""
REWRITE_BYTES = 1_000_000_000
"""Up to this file size a start rewrites an old file, to index it for search and to let it shrink later. A larger file
stays as it is, because a start should take seconds."""

_record_decoder = msgspec.json.Decoder(CallRecord)
_envelope_decoder = msgspec.json.Decoder(Envelope)
_encoder = msgspec.json.Encoder()


class Database(SqliteFile):
    """See `SqliteFile`."""

    MIGRATIONS, RECORDS = tables.MIGRATIONS, ("calls", "call_id")
    _floor = 0
    """The value of `floor` in the file."""
    _reserved = False

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, rows: Iterable[tables.EventRow], records: Iterable[CallRecord], floor: int) -> None:
        """Write rows and the call records that sum them up, in one transaction."""
        rows = tuple(rows)
        if rows and not self._reserved:
            self._reserve(rows[0].id + tables.RESERVED_ROWS)
        with self._transaction():
            self._insert(rows, records)
            if floor > self._floor:
                self._raise_floor(floor)
        self._floor = max(self._floor, floor)

    def _insert(self, rows: Sequence[tables.EventRow], records: Iterable[CallRecord]) -> None:
        self._connection.executemany(
            "INSERT INTO events (id, call_id, seq, type, json) VALUES (?, ?, ?, ?, ?)",
            ((row.id, row.call_id, row.seq, row.type, row.frame) for row in rows),
        )
        # Kept apart, so that a start need not search all events for it.
        if worker_seq := max((row.seq for row in rows if row.call_id is None), default=0):
            self.execute("INSERT OR REPLACE INTO meta VALUES ('worker_seq', ?)", (worker_seq,))
        search.add(self._connection, ((row.id, row.type, row.frame) for row in rows))
        self._connection.executemany(
            "INSERT OR REPLACE INTO calls (call_id, record) VALUES (?, ?)",
            ((record.call_id, _encoder.encode(record).decode()) for record in records),
        )

    def _reserve(self, row: int) -> None:
        """Reserve the row ids up to `row`, synced to the disk: the one commit of a run that a power cut must not
        undo, because the cursors of lost events must never name later ones."""
        self.execute("PRAGMA synchronous = FULL")
        try:
            self.execute("INSERT OR REPLACE INTO meta VALUES ('reserved', ?)", (row,))
        finally:
            self.execute("PRAGMA synchronous = NORMAL")
        self._reserved = True

    def carry(self, call_ids: Collection[str]) -> tables.Carried:
        """Return the events of these calls and the whole table `meta`, for the file that replaces this one."""
        query = "SELECT id, call_id, seq, type, json FROM events WHERE call_id = ? ORDER BY id"
        rows = [tables.EventRow(*found) for call_id in call_ids for found in self.execute(query, (call_id,))]
        return tables.Carried(self.execute("SELECT key, value FROM meta").fetchall(), rows)

    def restore(self, store_id: str, carried: tables.Carried, records: Iterable[CallRecord], floor: int) -> None:
        """Write what was carried over into this new file, under the store id that the clients' cursors name."""
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", carried.meta)
            self.execute("INSERT OR REPLACE INTO meta VALUES ('store_id', ?)", (store_id,))
            self._raise_floor(floor)
            self._insert(carried.rows, records)
        self._floor = floor

    def mended(self, error: sqlite3.Error) -> bool:
        if not search.is_damaged(error):
            return super().mended(error)
        # The search index can be rebuilt from the events. SQLite refuses to drop a damaged FTS5 table; its entry in
        # the schema and the shadow tables behind it can still be deleted one by one.
        self.execute("PRAGMA writable_schema = ON")
        try:
            with self._transaction():
                self.execute("DELETE FROM sqlite_master WHERE name = 'words'")
                parts = self.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'words_*'")
                for (name,) in parts.fetchall():
                    self.execute(f"DROP TABLE {name}")
        finally:
            self.execute("PRAGMA writable_schema = RESET")
        with self._transaction():
            self.execute(search.SCHEMA)
            if self.used_bytes <= INDEX_BYTES:
                search.add(self._connection, self.execute("SELECT id, type, json FROM events"))
        return True

    def remade(self, key: str) -> str | None:
        record = self._from_events(key)
        return None if record is None else _encoder.encode(record).decode()

    def rename(self, call_id: str, names: Mapping[str, str]) -> CallRecord | None:
        """Set names of legs of an ended call; return its record, None when there is no such call."""
        record = self.call(call_id)
        if record is not None:
            legs = [msgspec.structs.replace(leg, name=names.get(leg.leg, leg.name)) for leg in record.legs]
            record = msgspec.structs.replace(record, legs=legs)
            self.append((), (record,), 0)
        return record

    def erase(self, call_id: str) -> None:
        """Erase the call's record and all its events. The search index keeps their words until `purge` has run."""
        with self._transaction():
            search.remove(self._connection, "call_id = ?", (call_id,))
            empty = f"call_id = NULL, seq = 0, type = '{tables.ERASED}', json = ''"
            self.execute(f"UPDATE events SET {empty} WHERE call_id = ?", (call_id,))
            self.execute("DELETE FROM calls WHERE call_id = ?", (call_id,))
        # The old pages stay readable in the log until it is checkpointed.
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def expire(self, call_id: str, limit: int) -> tuple[int, bool]:
        """Delete at most `limit` rows of an ended call, and of older events without a call.

        Cursors before the call's last row are expired from then on. Returns the number of rows deleted, and whether
        the whole call is deleted; the caller repeats until it is.
        """
        found = self.execute("SELECT max(id) FROM events WHERE call_id = ?", (call_id,)).fetchone()[0]
        floor, removed = max(found or 0, self._floor), 0
        with self._transaction():
            self._raise_floor(floor)
            # The newest event without a call stays: the `seq` of such events continues from it.
            newest = "SELECT id FROM events WHERE call_id IS NULL AND seq > 0 ORDER BY id DESC LIMIT 1"
            for where, argument in (
                ("call_id = ?", call_id),
                (f"call_id IS NULL AND id <= ? AND id <> ifnull(({newest}), 0)", floor),
            ):
                these = f"id IN (SELECT id FROM events WHERE {where} ORDER BY id LIMIT ?)"
                search.remove(self._connection, these, (argument, limit - removed))
                removed += self.execute(f"DELETE FROM events WHERE {these}", (argument, limit - removed)).rowcount
            left = self.execute("SELECT 1 FROM events WHERE call_id = ? LIMIT 1", (call_id,)).fetchone() is not None
            if not left:
                self.execute("DELETE FROM calls WHERE call_id = ?", (call_id,))
        self._floor = floor
        return removed, not left

    def purge(self, *, begin: bool) -> bool:
        """Rewrite one piece of the search index without the words of erased events; return whether more is to do.

        The words stay in the index until the last piece is done, and in the log until it is checkpointed.
        """
        more = search.merge(self._connection, begin=begin)
        if not more:
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return more

    def shrink(self, pages: int) -> bool:
        """Return at most `pages` free pages to the file system; return whether there are more."""
        # The pragma yields one row for each page that it moves, and moves none that is not fetched.
        self.execute(f"PRAGMA incremental_vacuum({pages:d})").fetchall()
        return bool(self.free_pages) and self._pragma("auto_vacuum") == 2

    def checkpoint(self) -> None:
        """Write as much of the log into the file as is possible without waiting for readers."""
        self.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _raise_floor(self, floor: int) -> None:
        self.execute("INSERT OR REPLACE INTO meta VALUES ('floor', ?)", (floor,))

    def keep_place(self, name: str, row: int) -> None:
        """Store the row up to which the feed `name` has been read, for the next start."""
        self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"place {name}", row))

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """The size of the file without its free pages."""
        return (self._pragma("page_count") - self.free_pages) * self._pragma("page_size")

    @property
    def free_pages(self) -> int:
        return self._pragma("freelist_count")

    def place(self, name: str) -> int | None:
        """Return the row that `keep_place` stored for this feed, or the row before it when that one was deleted."""
        found = self.execute("SELECT value FROM meta WHERE key = ?", (f"place {name}",)).fetchone()
        if found is None:
            return None
        row = self.execute("SELECT max(id) FROM events WHERE id <= ?", (found[0],)).fetchone()[0]
        return int(found[0] if row is None else row)

    @property
    def rows(self) -> int:
        """The number of stored events. Counting them walks an index, which is too slow for every scrape."""
        return int(self.execute("SELECT count(*) FROM events").fetchone()[0])

    def ended(self, before: str | None, limit: int) -> list[tuple[str, int]]:
        """Return (call id, highest row) of calls that ended before that time, the earliest first; None: at any time."""
        query = (
            "SELECT call_id, ifnull((SELECT max(id) FROM events WHERE call_id = calls.call_id), 0) FROM calls"
            " WHERE ended_at IS NOT NULL AND ended_at < ? ORDER BY ended_at LIMIT ?"
        )
        return self.execute(query, ("~" if before is None else before, limit)).fetchall()

    @property
    def latest_end_s(self) -> float | None:
        """Unix time of the latest end of a call; ends that a restart wrote do not count."""
        query = (
            "SELECT ended_at FROM calls WHERE ended_at IS NOT NULL"
            " AND json_extract(record, '$.reason') <> 'worker_restart' ORDER BY ended_at DESC LIMIT 1"
        )
        found = self.execute(query).fetchone()
        with contextlib.suppress(ValueError):  # the record is damaged
            return None if found is None else datetime.fromisoformat(str(found[0])).timestamp()
        return None

    def probe(self) -> None:
        self.head()

    def head(self) -> tables.Head:
        """Return where the store stands, in a time that does not grow with it. Raises UnusableDatabase as well."""
        meta = dict(self.execute("SELECT key, value FROM meta").fetchall())
        store_id, floor, reserved = meta.get("store_id"), meta.get("floor", 0), meta.get("reserved", 0)
        row = self.execute("SELECT max(id) FROM events").fetchone()[0] or 0
        seq = meta.get("worker_seq")
        if seq is None:  # a version before `worker_seq` has written the file
            seq = self.execute("SELECT max(seq) FROM events WHERE call_id IS NULL").fetchone()[0] or 0
        numbers = (floor, reserved, row, seq)
        if not all(isinstance(number, int) and 0 <= number < tables.ROW_MAX for number in numbers):
            raise UnusableDatabase("damaged", "its row numbers are impossible")
        if not isinstance(store_id, str) or not (store_id.isalnum() and store_id.isascii()):
            raise UnusableDatabase("damaged", "it has no id")
        self._floor = floor
        records = [self.call(call_id) for (call_id,) in self.execute(tables.OPEN_CALLS).fetchall()]
        live = tuple(record for record in records if record is not None and record.state != "ended")
        # Expired rows count as well: no later event may have their ids.
        return tables.Head(store_id, max(row, floor), reserved, floor, seq, live)

    def has_row(self, row: int) -> bool:
        return self.execute("SELECT 1 FROM events WHERE id = ?", (row,)).fetchone() is not None

    def page(
        self, after: int, until: int, limit: int, *, call_id: str | None = None, types: frozenset[str] | None = None
    ) -> list[tuple[int, str]]:
        """Return (row id, frame) of at most `limit` events with `after < id <= until`, oldest first. A damaged event
        has an empty frame."""
        where = ["id > ?", "id <= ?", f"type <> '{tables.ERASED}'"]
        arguments: list[object] = [after, until]
        if call_id is not None:
            where.append("call_id = ?")
            arguments.append(call_id)
        if types is not None:
            where.append(f"type IN ({', '.join('?' * len(types))})")
            arguments.extend(sorted(types))
        query = f"SELECT id, CAST(json AS BLOB) FROM events WHERE {' AND '.join(where)} ORDER BY id LIMIT ?"
        return [(row, self._frame(row, frame)) for row, frame in self.execute(query, (*arguments, limit))]

    def calls(self, limit: int, after: str | None = None) -> list[CallRecord]:
        """Return at most `limit` calls older than the call `after`, newest first: ids are UUIDv7 and sort by time."""
        where, arguments = ("WHERE call_id < ?", (after, limit)) if after is not None else ("", (limit,))
        query = f"SELECT call_id, CAST(record AS BLOB) FROM calls {where} ORDER BY call_id DESC LIMIT ?"
        found = [self._decoded(*row) for row in self.execute(query, arguments).fetchall()]
        return [record for record in found if record is not None]

    def search(self, text: str, limit: int, after: int | None = None) -> tuple[list[CallRecord], int | None]:
        """Return at most `limit` calls in which one event holds all words of `text`: an utterance, or the names and
        numbers of a call or a leg. The call with the latest match comes first. The second value is the `after` of the
        next page; None on the last page."""
        query = search.query_of(text)
        found: list[CallRecord] = []
        if not query:
            return found, None
        last = after
        for row, call_id in search.calls(self._connection, query, after):
            if len(found) == limit:
                return found, last
            last = row
            if (record := self.call(call_id)) is not None:
                found.append(record)
        return found, None

    def frames(self, call_id: str, types: frozenset[str]) -> list[str]:
        """Return the frames of a call's durable events of these types, in order."""
        return [frame for _, frame in self.page(0, 2**63 - 1, -1, call_id=call_id, types=types) if frame]

    # -- damaged records ----------------------------------------------------------------------------------------------

    def _frame(self, row: int, stored: object) -> str:
        """Return the frame; empty for a damaged one, which is of no use to a subscriber and must not stop a replay."""
        with contextlib.suppress(ValueError):
            if isinstance(stored, bytes) and _envelope_decoder.decode(stored).cursor.endswith(f":{row}"):
                return stored.decode()
        self._on_damage(f"event {row}")
        return ""

    def call(self, call_id: str) -> CallRecord | None:
        found = self.execute("SELECT CAST(record AS BLOB) FROM calls WHERE call_id = ?", (call_id,)).fetchone()
        return None if found is None else self._decoded(call_id, found[0])

    def _decoded(self, call_id: str, stored: object) -> CallRecord | None:
        """Return the stored record, or one folded from the call's events when the stored one is damaged."""
        record = self._intact(_record_decoder, stored, f"record of call {call_id}")
        return self._from_events(call_id) if record is None else record

    def _from_events(self, call_id: str) -> CallRecord | None:
        record: CallRecord | None = None
        for _, frame in self.page(0, 2**63 - 1, -1, call_id=call_id):
            try:
                record = calls.apply(record, decode(frame))
            except (EventError, ValueError):  # the event is damaged as well, or the call's beginning is missing
                continue
        return record

    def _migrate(self) -> None:
        before = self._pragma("user_version")
        super()._migrate()
        if 0 < before < tables.SEARCHED_VERSION and self.used_bytes <= REWRITE_BYTES:
            with self._transaction():
                search.add(self._connection, self.execute("SELECT id, type, json FROM events").fetchall())
        # Short, and safe in a URL without escapes, because it is part of every cursor.
        self.execute("INSERT OR IGNORE INTO meta VALUES ('store_id', ?)", (secrets.token_hex(4),))
        if self._pragma("auto_vacuum") != 2 and self.used_bytes <= REWRITE_BYTES:
            # Only VACUUM turns incremental vacuum on in a file that was created without it. When the disk has no room
            # for the copy, the file stays as it is: it does not shrink, but SQLite reuses its free pages.
            with contextlib.suppress(sqlite3.OperationalError):
                self.execute("PRAGMA auto_vacuum = INCREMENTAL")
                self.execute("VACUUM")
