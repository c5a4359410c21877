"""The SQLite file behind the store: schema, migrations, and every query. No threads; each thread opens its own.

`events` holds the frames as they went out, so that a replay encodes nothing. `calls` holds one record per call, written
in the transaction of the events it sums up; its columns are generated from the record.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

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
)

ERASED = "erased"
"""Type of a row whose event was erased. The row stays, empty, because its id is somebody's cursor."""

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


class Database:
    """One connection, for one thread. Every method may raise sqlite3.Error."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        uri = f"{path.absolute().as_uri()}{'?mode=ro' if read_only else ''}"
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
        if not read_only:
            self.execute("PRAGMA journal_mode = WAL")
            # A commit survives a kill of the process; only a power failure may take the last ones with it.
            self.execute("PRAGMA synchronous = NORMAL")
            # An erased call is overwritten, not only unlinked.
            self.execute("PRAGMA secure_delete = ON")
            self._migrate()

    def close(self) -> None:
        self._connection.close()

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(sql, parameters)

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, rows: Iterable[Row], records: Iterable[CallRecord], floor: int) -> None:
        """Rows and the call records that sum them up, in one transaction."""
        self.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(
                "INSERT INTO events (id, call_id, seq, type, json) VALUES (?, ?, ?, ?, ?)",
                ((row.id, row.call_id, row.seq, row.type, row.frame) for row in rows),
            )
            self._connection.executemany(
                "INSERT OR REPLACE INTO calls (call_id, record) VALUES (?, ?)",
                ((record.call_id, _encoder.encode(record).decode()) for record in records),
            )
            if floor:
                self.execute("INSERT OR REPLACE INTO meta VALUES ('floor', ?)", (floor,))
            self.execute("COMMIT")
        except BaseException:
            # A full disk may have rolled back already (sqlite.org/lang_transaction.html#immediate).
            if self._connection.in_transaction:
                self.execute("ROLLBACK")
            raise

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
        self.execute("BEGIN IMMEDIATE")
        try:
            self.execute(
                f"UPDATE events SET call_id = NULL, seq = 0, type = '{ERASED}', json = '' WHERE call_id = ?", (call_id,)
            )
            self.execute("DELETE FROM calls WHERE call_id = ?", (call_id,))
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self.execute("ROLLBACK")
            raise
        # Until the log is checkpointed the old pages are still in it.
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # -- reading ----------------------------------------------------------------------------------------------------

    def head(self) -> Head:
        meta = dict(self.execute("SELECT key, value FROM meta").fetchall())
        row = self.execute("SELECT max(id) FROM events").fetchone()[0]
        seq = self.execute("SELECT max(seq) FROM events WHERE call_id IS NULL").fetchone()[0]
        query = "SELECT record FROM calls WHERE json_extract(record, '$.state') <> 'ended' ORDER BY call_id"
        records = tuple(_record_decoder.decode(record) for (record,) in self.execute(query))
        return Head(str(meta["store_id"]), row or 0, int(meta.get("floor", 0)), seq or 0, records)

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

    def _migrate(self) -> None:
        version = int(self.execute("PRAGMA user_version").fetchone()[0])
        if version > len(MIGRATIONS):
            raise sqlite3.DatabaseError(f"the file has version {version}, this program knows {len(MIGRATIONS)}")
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            self._connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
        # Short, and without what a URL would have to escape: it stands in every cursor.
        self.execute("INSERT OR IGNORE INTO meta VALUES ('store_id', ?)", (secrets.token_hex(4),))
