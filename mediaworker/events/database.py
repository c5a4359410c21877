"""The SQLite file behind the store: every query to the tables of `tables`. No threads; each thread opens its own.

`events` holds the frames as they went out, so that a replay encodes nothing. `calls` holds one record per call, written
in the transaction of the events it sums up; its columns are generated from the record.
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
"""A damaged search index is filled again, while events wait, from a file up to this size."""
REWRITE_BYTES = 1_000_000_000
"""A start should take seconds: a larger file is not written anew to learn how to shrink."""

_record_decoder = msgspec.json.Decoder(CallRecord)
_envelope_decoder = msgspec.json.Decoder(Envelope)
_encoder = msgspec.json.Encoder()


class Database(SqliteFile):
    """See `SqliteFile`."""

    MIGRATIONS, RECORDS = tables.MIGRATIONS, ("calls", "call_id")
    _floor = 0
    """As written to the file."""
    _reserved = False

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, rows: Iterable[tables.EventRow], records: Iterable[CallRecord], floor: int) -> None:
        """Rows and the call records that sum them up, in one transaction."""
        rows = tuple(rows)
        if rows and not self._reserved:
            self._reserve(rows[0].id + tables.RESERVED_ROWS)
        with self._transaction():
            self._insert(rows, records)
            if raised := floor > self._floor:
                self._raise_floor(floor)
        self._floor = floor if raised else self._floor

    def _insert(self, rows: Sequence[tables.EventRow], records: Iterable[CallRecord]) -> None:
        self._connection.executemany(
            "INSERT INTO events (id, call_id, seq, type, json) VALUES (?, ?, ?, ?, ?)",
            ((row.id, row.call_id, row.seq, row.type, row.frame) for row in rows),
        )
        # So that a start need not look for it among all events.
        if worker_seq := max((row.seq for row in rows if row.call_id is None), default=0):
            self.execute("INSERT OR REPLACE INTO meta VALUES ('worker_seq', ?)", (worker_seq,))
        search.add(self._connection, ((row.id, row.type, row.frame) for row in rows))
        self._connection.executemany(
            "INSERT OR REPLACE INTO calls (call_id, record) VALUES (?, ?)",
            ((record.call_id, _encoder.encode(record).decode()) for record in records),
        )

    def _reserve(self, row: int) -> None:
        """Synced: the one commit of a run that a power cut must not take."""
        self.execute("PRAGMA synchronous = FULL")
        try:
            self.execute("INSERT OR REPLACE INTO meta VALUES ('reserved', ?)", (row,))
        finally:
            self.execute("PRAGMA synchronous = NORMAL")
        self._reserved = True

    def carry(self, call_ids: Collection[str]) -> tables.Carried:
        """The events of these calls, and what is known beside the events."""
        query = "SELECT id, call_id, seq, type, json FROM events WHERE call_id = ? ORDER BY id"
        rows = [tables.EventRow(*found) for call_id in call_ids for found in self.execute(query, (call_id,))]
        return tables.Carried(self.execute("SELECT key, value FROM meta").fetchall(), rows)

    def restore(self, store_id: str, carried: tables.Carried, records: Iterable[CallRecord], floor: int) -> None:
        """Into a new file, what was carried over, under the id that cursors know."""
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", carried.meta)
            self.execute("INSERT OR REPLACE INTO meta VALUES ('store_id', ?)", (store_id,))
            self._raise_floor(floor)
            self._insert(carried.rows, records)
        self._floor = floor

    def mended(self, error: sqlite3.Error) -> bool:
        if not search.is_damaged(error):
            return super().mended(error)
        # The search index can be made again; a large store does without its past, so that calls need not wait. It
        # cannot be dropped while it is damaged, only its entry in the schema and what it is made of.
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
        """Names of legs of an ended call."""
        record = self.call(call_id)
        if record is not None:
            legs = [msgspec.structs.replace(leg, name=names.get(leg.leg, leg.name)) for leg in record.legs]
            record = msgspec.structs.replace(record, legs=legs)
            self.append((), (record,), 0)
        return record

    def erase(self, call_id: str) -> None:
        """Everything that was said in the call, and by whom; `purge` is still to be called."""
        with self._transaction():
            search.remove(self._connection, "call_id = ?", (call_id,))
            empty = f"call_id = NULL, seq = 0, type = '{tables.ERASED}', json = ''"
            self.execute(f"UPDATE events SET {empty} WHERE call_id = ?", (call_id,))
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
                these = f"id IN (SELECT id FROM events WHERE {where} ORDER BY id LIMIT ?)"
                search.remove(self._connection, these, (argument, limit - removed))
                removed += self.execute(f"DELETE FROM events WHERE {these}", (argument, limit - removed)).rowcount
            left = self.execute("SELECT 1 FROM events WHERE call_id = ? LIMIT 1", (call_id,)).fetchone() is not None
            if not left:
                self.execute("DELETE FROM calls WHERE call_id = ?", (call_id,))
        self._floor = floor
        return removed, not left

    def purge(self, *, begin: bool) -> bool:
        """One piece of rewriting the search index without the words of what was erased; whether there is more to do.

        They stand in the index until then, and in the log until it is checkpointed.
        """
        more = search.merge(self._connection, begin=begin)
        if not more:
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return more

    def shrink(self, pages: int) -> bool:
        """Give at most `pages` free pages back to the file system; whether there are more."""
        # One row per page that moves: without fetching them nothing happens.
        self.execute(f"PRAGMA incremental_vacuum({pages:d})").fetchall()
        return bool(self.free_pages) and self._pragma("auto_vacuum") == 2

    def checkpoint(self) -> None:
        """Write the log into the file as far as no reader is in the way, without waiting for any."""
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

    @property
    def latest_end_s(self) -> float | None:
        """Unix time at which a call ended last, of those that were not ended by a start of the worker."""
        query = (
            "SELECT ended_at FROM calls WHERE ended_at IS NOT NULL"
            " AND json_extract(record, '$.reason') <> 'worker_restart' ORDER BY ended_at DESC LIMIT 1"
        )
        found = self.execute(query).fetchone()
        with contextlib.suppress(ValueError):  # a damaged one tells nothing
            return None if found is None else datetime.fromisoformat(str(found[0])).timestamp()
        return None

    def probe(self) -> None:
        self.head()

    def head(self) -> tables.Head:
        """Raises UnusableDatabase as well. Takes no longer when more is stored."""
        meta = dict(self.execute("SELECT key, value FROM meta").fetchall())
        store_id, floor, reserved = meta.get("store_id"), meta.get("floor", 0), meta.get("reserved", 0)
        row = self.execute("SELECT max(id) FROM events").fetchone()[0] or 0
        seq = meta.get("worker_seq")
        if seq is None:  # an older program has written it
            seq = self.execute("SELECT max(seq) FROM events WHERE call_id IS NULL").fetchone()[0] or 0
        numbers = (floor, reserved, row, seq)
        if not all(isinstance(number, int) and 0 <= number < tables.ROW_MAX for number in numbers):
            raise UnusableDatabase("damaged", "its numbers are impossible")
        if not isinstance(store_id, str) or not (store_id.isalnum() and store_id.isascii()):
            raise UnusableDatabase("damaged", "it has no id")
        self._floor = floor
        records = [self.call(call_id) for (call_id,) in self.execute(tables.OPEN_CALLS).fetchall()]
        live = tuple(record for record in records if record is not None and record.state != "ended")
        # Rows that expired counted too: no later event may get their numbers.
        return tables.Head(store_id, max(row, floor), reserved, floor, seq, live)

    def has_row(self, row: int) -> bool:
        return self.execute("SELECT 1 FROM events WHERE id = ?", (row,)).fetchone() is not None

    def page(
        self, after: int, until: int, limit: int, *, call_id: str | None = None, types: frozenset[str] | None = None
    ) -> list[tuple[int, str]]:
        """(row id, frame) of at most `limit` events with `after < id <= until`, oldest first. A damaged one has
        an empty frame."""
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
        """Newest first (ids are UUIDv7), at most `limit`, older than the call `after`."""
        where, arguments = ("WHERE call_id < ?", (after, limit)) if after is not None else ("", (limit,))
        query = f"SELECT call_id, CAST(record AS BLOB) FROM calls {where} ORDER BY call_id DESC LIMIT ?"
        found = [self._decoded(*row) for row in self.execute(query, arguments).fetchall()]
        return [record for record in found if record is not None]

    def search(self, text: str, limit: int, after: int | None = None) -> tuple[list[CallRecord], int | None]:
        """At most `limit` calls in which all words of `text` occur, in one utterance or among names and numbers; by
        the latest place, the newest first. The second half is the `after` of the next page, None on the last one."""
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
        """A call's durable events of these types, in order."""
        return [frame for _, frame in self.page(0, 2**63 - 1, -1, call_id=call_id, types=types) if frame]

    # -- damaged records ----------------------------------------------------------------------------------------------

    def _frame(self, row: int, stored: object) -> str:
        """Empty for one that cannot be read: nobody can do anything with it, and it must not stop a resumption."""
        with contextlib.suppress(ValueError):
            if isinstance(stored, bytes) and _envelope_decoder.decode(stored).cursor.endswith(f":{row}"):
                return stored.decode()
        self._on_damage(f"event {row}")
        return ""

    def call(self, call_id: str) -> CallRecord | None:
        found = self.execute("SELECT CAST(record AS BLOB) FROM calls WHERE call_id = ?", (call_id,)).fetchone()
        return None if found is None else self._decoded(call_id, found[0])

    def _decoded(self, call_id: str, stored: object) -> CallRecord | None:
        """The record, or the one that the call's events add up to when it cannot be read."""
        record = self._intact(_record_decoder, stored, f"record of call {call_id}")
        return self._from_events(call_id) if record is None else record

    def _from_events(self, call_id: str) -> CallRecord | None:
        record: CallRecord | None = None
        for _, frame in self.page(0, 2**63 - 1, -1, call_id=call_id):
            try:
                record = calls.apply(record, decode(frame))
            except (EventError, ValueError):  # damaged as well, or without its beginning
                continue
        return record

    def _migrate(self) -> None:
        before = self._pragma("user_version")
        super()._migrate()
        if 0 < before < tables.SEARCHED_VERSION and self.used_bytes <= REWRITE_BYTES:
            with self._transaction():
                search.add(self._connection, self.execute("SELECT id, type, json FROM events").fetchall())
        # Short, and without what a URL would have to escape: it stands in every cursor.
        self.execute("INSERT OR IGNORE INTO meta VALUES ('store_id', ?)", (secrets.token_hex(4),))
        if self._pragma("auto_vacuum") != 2 and self.used_bytes <= REWRITE_BYTES:
            # A file from before retention: written anew once, after which it can shrink. Without the room for that it
            # stays as it is, and what is erased in it is used again.
            with contextlib.suppress(sqlite3.OperationalError):
                self.execute("PRAGMA auto_vacuum = INCREMENTAL")
                self.execute("VACUUM")
