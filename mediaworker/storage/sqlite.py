"""The common part of the worker's SQLite files: opening, migrations, transactions, and the detection of damage.

A damaged file is set aside under its name with the date, and a new one is opened in its place (`open_file`), because a
broken disk must not keep the worker from accepting calls. A single damaged record is replaced or removed (`mend`). A
`SqliteFile` is used by one thread only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import msgspec

from mediaworker.storage.durable import sync_directory

T = TypeVar("T")
Reason = Literal["damaged", "deleted", "replaced"]
REASONS: tuple[Reason, ...] = ("damaged", "deleted", "replaced")
SUFFIXES = ("", "-wal", "-shm")
ASIDE = ".damaged-"
"""The text between the name of a file that was set aside and its date."""
VERSION_MAX = 1000
"""A larger version of the schema is damage: no newer program has written it."""
ENVIRONMENT = (
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_NOLFS,
)  # fmt: skip
"""Primary result codes (sqlite.org/rescode.html) that have other causes than the content of the file."""


class UnusableDatabase(sqlite3.DatabaseError):
    """The file is damaged, or is no longer the one that was opened. `log_only`: this is true of its write-ahead log
    only."""

    def __init__(self, reason: Reason, message: str, *, log_only: bool = False) -> None:
        self.reason, self.log_only = reason, log_only
        super().__init__(message)


class NewerFile(sqlite3.DatabaseError):
    """The file was written by a newer program, so it is left unchanged."""


class MigrationFailed(sqlite3.DatabaseError):
    """A migration to the next version failed; the file keeps its old version."""


def unusable(error: BaseException) -> UnusableDatabase | None:
    """Return the fault of a file in use that an error shows; None when the file is not to blame."""
    if isinstance(error, UnusableDatabase):
        return error
    code = getattr(error, "sqlite_errorcode", None) or 0
    if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or code == sqlite3.SQLITE_IOERR_SHORT_READ:
        return UnusableDatabase("damaged", str(error))
    return UnusableDatabase("deleted", str(error)) if code == sqlite3.SQLITE_READONLY_DBMOVED else None


class SqliteFile:
    """One connection, for one thread. Every method may raise sqlite3.Error.

    Args:
        on_damage: called on the connection's thread for each record that cannot be read.
    """

    MIGRATIONS: ClassVar[Sequence[str]]
    """Each brings the file from version n to n + 1 (PRAGMA user_version)."""
    SYNC: ClassVar[bool] = False
    """A commit is on the disk when it returns. Without it, it survives a kill of the process, but a power cut may take
    the last ones with it; those before are whole."""
    RECORDS: ClassVar[tuple[str, str]]
    """The table whose column `record` holds JSON that its indexes look into, and the table's key."""

    def __init__(
        self, path: Path, *, read_only: bool = False, on_damage: Callable[[str], None] = lambda what: None
    ) -> None:
        self.path, self._on_damage = path, on_damage
        self._identity: dict[str, tuple[int, int]] = {}
        uri = f"{path.absolute().as_uri()}{'?mode=ro' if read_only else ''}"
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
        # A damaged text must not fail a query for many rows.
        self._connection.text_factory = lambda text: text.decode(errors="replace")
        if read_only:
            return
        try:
            # Lets the file return free pages to the file system, a few at a time. It has an effect only before the
            # first table is created.
            self.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self.execute("PRAGMA journal_mode = WAL")
            self.execute(f"PRAGMA synchronous = {'FULL' if self.SYNC else 'NORMAL'}")
            # What is erased is overwritten, not only unlinked.
            self.execute("PRAGMA secure_delete = ON")
            self._migrate()
            self._identity = self._files()
        except BaseException:
            self._connection.close()  # rolls back
            raise

    def close(self) -> None:
        self._connection.close()

    def probe(self) -> None:
        """Read what a start needs, and change nothing: a damaged record is no reason to give up the file. Raises
        sqlite3.Error, UnusableDatabase where the file cannot be used."""
        raise NotImplementedError

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(sql, parameters)

    # -- the file under the connection --------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise UnusableDatabase when the file or its log has been deleted, replaced or emptied since it was opened.

        SQLite would go on writing to a file without a name, which disappears at the end of the process with all that
        was written.
        """
        if not self._identity:
            return
        found = self._files()
        for suffix, known in self._identity.items():
            now = found.get(suffix)
            if now == known:
                continue
            reason: Reason = "deleted" if now is None else "replaced"
            raise UnusableDatabase(
                reason, f"{self.path.name}{suffix} was {reason} while it was in use", log_only=suffix != ""
            )
        if os.stat(self.path).st_size == 0:
            raise UnusableDatabase("damaged", f"{self.path.name} was emptied while it was in use")

    def note_files(self) -> None:
        """Note the identity of files that this connection has created since the last call: its log and the index of the
        log, after the first commit."""
        if self._identity.keys() < set(SUFFIXES):
            with contextlib.suppress(OSError):  # an error here must not make a successful commit fail
                self._identity = self._files() | self._identity

    def _files(self) -> dict[str, tuple[int, int]]:
        found = {}
        for suffix in SUFFIXES:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                status = os.stat(f"{self.path}{suffix}")
                found[suffix] = (status.st_dev, status.st_ino)
        return found

    def checkpoint_all(self) -> None:
        """Write the whole log into the file. Raises UnusableDatabase when a reader prevents it."""
        busy, _, _ = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise UnusableDatabase("damaged", "the log is still being read")

    # -- damaged records ----------------------------------------------------------------------------------------------

    def mend(self) -> int:
        """Replace or remove the records that are not JSON; return their number.

        A malformed record fails every statement that would change it, because SQLite computes the old entries of the
        indexes from it. So this drops the indexes, scans the whole table and creates them again. It is called only when
        such a statement has failed.
        """
        table, key = self.RECORDS
        with self._transaction():
            indexes = self.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL",
                (table,),
            ).fetchall()
            for name, _ in indexes:
                self.execute(f"DROP INDEX {name}")
            found = self.execute(f"SELECT {key} FROM {table} WHERE NOT ifnull(json_valid(record), 0)").fetchall()
            for (one,) in found:
                record = self.remade(one)
                self.execute(f"DELETE FROM {table} WHERE {key} = ?", (one,))
                if record is not None:
                    self.execute(f"INSERT INTO {table} ({key}, record) VALUES (?, ?)", (one, record))
            for _, sql in indexes:
                self.execute(sql)
        return len(found)

    def mended(self, error: sqlite3.Error) -> bool:
        """Repair the cause of an error if it is a damaged part of the file; return whether the failed statement may be
        tried again."""
        if "malformed JSON" not in str(error):
            return False
        self.mend()
        return True

    def remade(self, key: str) -> str | None:
        """Return a damaged record as restored from the rest of the file; None when it cannot be restored."""
        return None

    def _intact(self, decoder: msgspec.json.Decoder[T], stored: object, what: str) -> T | None:
        """Return a stored value decoded; None if it cannot be decoded, which is reported to `on_damage` as `what`."""
        with contextlib.suppress(ValueError):
            if isinstance(stored, bytes):
                return decoder.decode(stored)
        self._on_damage(what)
        return None

    # -- writing ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the statements of the block in one transaction."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            # On a full disk SQLite may have rolled back already (sqlite.org/lang_transaction.html#immediate).
            if self._connection.in_transaction:
                self.execute("ROLLBACK")
            raise

    def _migrate(self) -> None:
        """Step by step, each in a transaction: one that fails leaves the file at the version before it."""
        version, migrations = self._pragma("user_version"), self.MIGRATIONS
        if not 0 <= version <= VERSION_MAX:
            raise UnusableDatabase("damaged", f"the file cannot have version {version}")
        if version > len(migrations):
            raise NewerFile(
                f"the file has version {version}, this program knows {len(migrations)}: it was written by a newer one"
            )
        for number, script in enumerate(migrations[version:], version + 1):
            try:
                self._connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", None) or 0
                if code & 0xFF != sqlite3.SQLITE_ERROR:
                    raise
                if "already exists" in str(error):
                    raise UnusableDatabase(
                        "damaged", f"the version of the file does not match its content ({error})"
                    ) from None
                raise MigrationFailed(str(error)) from None

    def _pragma(self, name: str) -> int:
        return int(self.execute(f"PRAGMA {name}").fetchone()[0])


D = TypeVar("D", bound=SqliteFile)


def open_file(path: Path, make: Callable[[Path], D]) -> tuple[D, str | None]:
    """The file, opened and probed; and when it was damaged and a new one is open in its place, one
    sentence about that. Raises sqlite3.Error and OSError where the content of the file is not to blame.
    """
    path = Path(os.path.realpath(path))  # for a link, its target is set aside and replaced
    try:
        _check_kinds(path)
        return _opened(path, make), None
    except (sqlite3.Error, ValueError) as error:
        if (why := _damage(error, path)) is None:
            raise _explained(error, path) from error
    aside = set_aside(path)
    return _opened(path, make), f"{path.name} was damaged ({why}) and was set aside as {aside}"


def _opened(path: Path, make: Callable[[Path], D]) -> D:
    database = make(path)
    try:
        database.probe()
    except BaseException:
        database.close()
        raise
    return database


def _check_kinds(path: Path) -> None:
    for suffix in SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(f"{path}{suffix}")
            if not stat.S_ISREG(status.st_mode):
                raise UnusableDatabase("damaged", f"{path.name}{suffix} is not a file")
            if not suffix and not status.st_size:
                raise UnusableDatabase("damaged", "it is empty")


def _damage(error: Exception, path: Path) -> str | None:
    """Return how the file is damaged, as an error during its opening shows; None when the error has another cause."""
    if isinstance(error, UnusableDatabase | ValueError):
        return str(error)
    if isinstance(error, NewerFile | MigrationFailed):
        return None
    code = getattr(error, "sqlite_errorcode", None) or 0
    if code in (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ):
        return str(error)  # an unreadable sector, or a truncated file
    if code & 0xFF == sqlite3.SQLITE_READONLY and os.access(path, os.R_OK | os.W_OK) and _writable(path.parent):
        return "its header asks for a newer SQLite"
    return None if code & 0xFF in ENVIRONMENT else str(error)


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and not os.statvfs(folder).f_flag & os.ST_RDONLY


def is_read_only(folder: Path) -> bool:
    """Return whether the file system has become read-only. After an error of the disk, ext4 shows that neither in its
    flags nor to `access`, so it is found out by a write."""
    try:
        os.utime(folder)  # opening and closing a file of the database would drop SQLite's locks on it
    except OSError as error:
        return error.errno == errno.EROFS
    return False


def _explained(error: Exception, path: Path) -> Exception:
    """Return a more precise error where a permission is missing: SQLite only reports that it cannot open a file."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY):
        return error
    for suffix in SUFFIXES:
        name = f"{path}{suffix}"
        if os.path.exists(name) and not os.access(name, os.R_OK | os.W_OK):
            return PermissionError(f"{path.name}{suffix} cannot be read and written by the user that runs the worker")
    if not _writable(path.parent):
        return PermissionError(f"the folder of {path.name} cannot be written by the user that runs the worker")
    return error


def set_aside(path: Path) -> str:
    """Rename the file, its log and the log's index to `<name>.damaged-<date>`; return the new name. Raises OSError.

    The file itself is renamed last: if the process is killed in between, the next start still finds the damaged file
    and completes the work.
    """
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    name, number = f"{path.name}{ASIDE}{date}", 1
    while any(os.path.lexists(f"{path.with_name(name)}{suffix}") for suffix in SUFFIXES):
        number += 1
        name = f"{path.name}{ASIDE}{date}-{number}"
    for suffix in reversed(SUFFIXES):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{path.with_name(name)}{suffix}")
    with contextlib.suppress(FileNotFoundError):
        sync_directory(path.parent)
    return name


def save_log(error: UnusableDatabase, old: SqliteFile | None) -> bool:
    """Write the content of a lost log into the file, as the connection `old` still has it open, and close `old`. Return
    whether the file is whole after that. `old` is None when an earlier attempt has closed it."""
    if error.log_only and old is not None:
        try:
            old.checkpoint_all()
            old.close()
        except sqlite3.Error:
            error.log_only = False  # the content of the log is lost, so a new file has to be begun
    return error.log_only


def make_way(path: Path, old: SqliteFile | None) -> str | None:
    """Set aside the file at `path`, and close the connection `old` to the file that was there before. Return the new
    name; None when there was no file. Raises OSError.

    The order matters: when SQLite closes a file it deletes the log by its name, even if another file has that name now.
    """
    exists = any(os.path.lexists(f"{path}{suffix}") for suffix in SUFFIXES)
    aside = set_aside(path) if exists else None
    if old is not None:
        with contextlib.suppress(sqlite3.Error):
            old.close()
    return aside


def erase_set_aside(path: Path, before_s: float) -> list[str]:
    """Erase the damaged files whose last change was before that Unix time; return their names."""
    erased = []
    for found in files_set_aside(path):
        with contextlib.suppress(OSError):
            if found.is_file() and found.stat().st_mtime < before_s:
                for suffix in SUFFIXES:
                    Path(f"{found}{suffix}").unlink(missing_ok=True)
                erased.append(found.name)
    return erased


def files_set_aside(path: Path) -> list[Path]:
    """Return the damaged files that were set aside for `path`, oldest first, without their logs. Raises OSError."""
    found = [one for one in path.parent.glob(f"{path.name}{ASIDE}*") if not one.name.endswith(("-wal", "-shm"))]
    return sorted(found)
