"""Full-text search over transcripts, names and numbers: an FTS5 index beside the events of a `Database`.

The index holds words and the ids of events, but no texts: the words of finals, and the names and numbers of call starts
and of legs. It is contentless (sqlite.org/fts5.html#contentless_tables): FTS5 removes an entry only when it is given
the indexed text again, so `remove` must run before the event itself is erased.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator

import msgspec

SCHEMA = "CREATE VIRTUAL TABLE words USING fts5(text, content = '', tokenize = 'unicode61 remove_diacritics 2');"
MERGE_PAGES = 200
"""The number of pages that one piece of `merge` writes: a live commit waits behind at most one piece."""
MAX_WORDS = 16
"""The number of words of a query that are searched; further ones are ignored."""

_UNSPACED = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])"
)
"""Scripts without spaces between words (Thai, Lao, Burmese, Khmer, Japanese, Chinese): each character is a word."""
_WORD = re.compile(r"\w+")


class _LegNames(msgspec.Struct):
    name: str = ""
    label: str = ""


class _Event(msgspec.Struct):
    """The fields of an event that are searched."""

    type: str
    call_id: str | None = None
    text: str = ""
    spoken: str = ""
    name: str = ""
    label: str = ""
    from_: str = msgspec.field(default="", name="from")
    to: str = ""
    external_id: str = ""
    legs: list[_LegNames] = []
    custom: dict[str, str] = {}


_decoder = msgspec.json.Decoder(_Event)
INDEXED = ("transcript.final", "call.started", "leg.updated")


def searchable(frame: str) -> str:
    """Return the text of an event by which its call is found; empty for an event without any."""
    try:
        event = _decoder.decode(frame)
    except msgspec.DecodeError:
        return ""
    match event.type:
        case "transcript.final":
            parts = [event.text, event.spoken]
        case "leg.updated":
            parts = [event.name, event.label]
        case "call.started":
            legs = [part for leg in event.legs for part in (leg.name, leg.label)]
            parts = [event.from_, event.to, event.external_id, event.call_id or "", *legs, *event.custom.values()]
        case _:
            return ""
    return spaced(" ".join(part for part in parts if part))


def spaced(text: str) -> str:
    return _UNSPACED.sub(r" \1 ", text)


def query_of(typed: str) -> str:
    """Return the FTS5 query for a typed text: every word must occur, the last one as a prefix. Empty without words."""
    phrases = [" ".join(_WORD.findall(spaced(part))) for part in typed.split()[:MAX_WORDS]]
    phrases = [f'"{phrase}"' for phrase in phrases if phrase]
    return " AND ".join(phrases) + "*" if phrases else ""


def is_damaged(error: sqlite3.Error) -> bool:
    """Return whether an error means that the index is damaged, or that a part of it is missing.

    FTS5 has an error code for this, but uses it only where it reads a record and finds it malformed. Where damage makes
    it fail later, the error is known by its message, which names no table; errors of `events` and `calls` do name one.
    """
    text = str(error)
    return (
        getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT_VTAB
        or text in ("constraint failed", "SQL logic error", "no such table: words")
        or text.startswith("invalid fts5 file format")
    )


def add(connection: sqlite3.Connection, events: Iterable[tuple[int, str, str]]) -> None:
    """Index new events, each as (row id, type, frame)."""
    found = ((row, searchable(frame)) for row, type_, frame in events if type_ in INDEXED)
    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", [each for each in found if each[1]])


def remove(connection: sqlite3.Connection, where: str, arguments: tuple[object, ...]) -> None:
    """Remove the events that match `where` (a condition on `events`) from the index, before they are erased.

    Their words stay in the index's pages until `merge` has rewritten them.
    """
    types = ", ".join(f"'{type_}'" for type_ in INDEXED)
    rows = connection.execute(f"SELECT id, json FROM events WHERE type IN ({types}) AND {where}", arguments).fetchall()
    connection.executemany(
        "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)",
        [(row, text) for row, frame in rows if (text := searchable(frame))],
    )


def merge(connection: sqlite3.Connection, *, begin: bool) -> bool:
    """Rewrite one piece of the index without the removed entries; return whether there is more to do.

    FTS5's documentation of the merge command: a negative number begins the work, and fewer than two changes mean that
    it is done.
    """
    before = connection.total_changes
    pages = -MERGE_PAGES if begin else MERGE_PAGES
    connection.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
    return connection.total_changes - before >= 2


def calls(connection: sqlite3.Connection, query: str, after: int | None) -> Iterator[tuple[int, str]]:
    """Yield (row, call id) of the calls in which one event has all words of `query`. `row` is the call's latest such
    event; the newest comes first, and only calls whose row is below `after` are included."""
    seen: set[str] = set()
    rows = connection.execute(
        "SELECT words.rowid, events.call_id FROM words JOIN events ON events.id = words.rowid"
        " WHERE words MATCH ? AND words.rowid < ? ORDER BY words.rowid DESC",
        (query, after if after is not None else 2**62),
    )
    for row, call_id in rows:
        if call_id is None or call_id in seen:
            continue
        seen.add(call_id)
        if after is None or not _is_before(connection, query, call_id, after):
            yield row, call_id


def _is_before(connection: sqlite3.Connection, query: str, call_id: str, row: int) -> bool:
    """Return whether the call was on an earlier page, because it has a matching event at `row` or later."""
    later = connection.execute("SELECT id FROM events WHERE call_id = ? AND id >= ?", (call_id, row))
    found = "SELECT 1 FROM words WHERE words MATCH ? AND rowid = ?"
    return any(connection.execute(found, (query, each)).fetchone() for (each,) in later.fetchall())
