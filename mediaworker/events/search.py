"""Full-text search over what was said and by whom: an FTS5 index beside the events, on the connection of a `Database`.

The index holds words and the ids of events, no texts: of finals what was said, of a call's start and of its legs the
names and numbers. It is contentless (sqlite.org/fts5.html#contentless_tables), so an event leaves it by being named
together with its text, before the event itself is erased.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator

import msgspec

SCHEMA = "CREATE VIRTUAL TABLE words USING fts5(text, content = '', tokenize = 'unicode61 remove_diacritics 2');"
MERGE_PAGES = 200
"""Pages written by one piece of `merge`: a live commit waits behind at most one."""
MAX_WORDS = 16
"""Of a query; more are not looked at."""

_UNSPACED = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])"
)
"""Scripts without spaces between words (Thai, Lao, Burmese, Khmer, Japanese, Chinese): each character is a word."""
_WORD = re.compile(r"\w+")


class _LegNames(msgspec.Struct):
    name: str = ""
    label: str = ""


class _Event(msgspec.Struct):
    """As much of an event as is searched."""

    type: str
    call_id: str | None = None
    text: str = ""
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
    """The words of an event by which its call is found; empty for one that says none."""
    try:
        event = _decoder.decode(frame)
    except msgspec.DecodeError:
        return ""
    match event.type:
        case "transcript.final":
            said = [event.text]
        case "leg.updated":
            said = [event.name, event.label]
        case "call.started":
            legs = [part for leg in event.legs for part in (leg.name, leg.label)]
            said = [event.from_, event.to, event.external_id, event.call_id or "", *legs, *event.custom.values()]
        case _:
            return ""
    return spaced(" ".join(part for part in said if part))


def spaced(text: str) -> str:
    return _UNSPACED.sub(r" \1 ", text)


def query_of(typed: str) -> str:
    """FTS5's query for what somebody typed: every word has to occur, the last one may go on. Empty for no word."""
    phrases = [" ".join(_WORD.findall(spaced(part))) for part in typed.split()[:MAX_WORDS]]
    phrases = [f'"{phrase}"' for phrase in phrases if phrase]
    return " AND ".join(phrases) + "*" if phrases else ""


def is_damaged(error: sqlite3.Error) -> bool:
    """Whether an error says that the index is damaged, or that a part of it is missing.

    FTS5 says so by a code of its own only of what it has read and found wrong. Where damage makes it fail later, its
    messages name no table, which those about `events` and `calls` do.
    """
    text = str(error)
    return (
        getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT_VTAB
        or text in ("constraint failed", "SQL logic error", "no such table: words")
        or text.startswith("invalid fts5 file format")
    )


def add(connection: sqlite3.Connection, events: Iterable[tuple[int, str, str]]) -> None:
    """(row id, type, frame) of new events."""
    found = ((row, searchable(frame)) for row, type_, frame in events if type_ in INDEXED)
    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", [each for each in found if each[1]])


def remove(connection: sqlite3.Connection, where: str, arguments: tuple[object, ...]) -> None:
    """Before the events of `where` (a condition on `events`) go. Their words are unreadable after `merge`."""
    types = ", ".join(f"'{type_}'" for type_ in INDEXED)
    rows = connection.execute(f"SELECT id, json FROM events WHERE type IN ({types}) AND {where}", arguments).fetchall()
    connection.executemany(
        "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)",
        [(row, text) for row, frame in rows if (text := searchable(frame))],
    )


def merge(connection: sqlite3.Connection, *, begin: bool) -> bool:
    """One piece of rewriting the index without what was removed from it; whether there is more to do."""
    before = connection.total_changes
    pages = -MERGE_PAGES if begin else MERGE_PAGES
    connection.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
    return connection.total_changes - before >= 2


def calls(connection: sqlite3.Connection, query: str, after: int | None) -> Iterator[tuple[int, str]]:
    """(row, call id) of the calls in which one event has all words of `query`, by their latest such event, the newest
    first; those behind the row `after`."""
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
    """Whether the call was on an earlier page: it has such an event at `row` or later."""
    later = connection.execute("SELECT id FROM events WHERE call_id = ? AND id >= ?", (call_id, row))
    found = "SELECT 1 FROM words WHERE words MATCH ? AND rowid = ?"
    return any(connection.execute(found, (query, each)).fetchone() for (each,) in later.fetchall())
