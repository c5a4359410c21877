"""What the worker's SQLite files have in common: how one is opened, brought up to date, and written. No threads."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path


class SqliteFile:
    """One connection, for one thread. Every method may raise sqlite3.Error."""

    def __init__(self, path: Path, migrations: Sequence[str], *, read_only: bool = False) -> None:
        """`migrations`: each brings the file from version n to n + 1 (PRAGMA user_version)."""
        uri = f"{path.absolute().as_uri()}{'?mode=ro' if read_only else ''}"
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
        if read_only:
            return
        try:
            # Pages that are emptied go back to the file system, a few at a time. Of use only before the first table is
            # made.
            self.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self.execute("PRAGMA journal_mode = WAL")
            # A commit survives a kill of the process; only a power failure may take the last ones with it.
            self.execute("PRAGMA synchronous = NORMAL")
            # What is erased is overwritten, not only unlinked.
            self.execute("PRAGMA secure_delete = ON")
            self._migrate(migrations)
        except BaseException:
            self._connection.close()  # and so rolls back
            raise

    def close(self) -> None:
        self._connection.close()

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(sql, parameters)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            # A full disk may have rolled back already (sqlite.org/lang_transaction.html#immediate).
            if self._connection.in_transaction:
                self.execute("ROLLBACK")
            raise

    def _migrate(self, migrations: Sequence[str]) -> None:
        """Step by step, each in a transaction: one that fails leaves the file at the version before it."""
        version = self._pragma("user_version")
        if version > len(migrations):
            raise sqlite3.DatabaseError(
                f"the file has version {version}, this program knows {len(migrations)}: it was written by a newer one"
            )
        for number, script in enumerate(migrations[version:], version + 1):
            self._connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")

    def _pragma(self, name: str) -> int:
        return int(self.execute(f"PRAGMA {name}").fetchone()[0])
