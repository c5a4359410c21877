"""The index of words: what is in it, and which queries are possible."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.events.samples import running_hub
from lab.events.search import a_call
from lab.house import ROOT
from mediaworker.events import search
from mediaworker.events.database import Database
from mediaworker.events.store import FILE

V1 = ROOT / "tests/data/store-v1.sqlite3"


@pytest.mark.parametrize("how", ["erased", "expired"])
async def test_what_is_erased_is_in_no_index(tmp_path: Path, how: str) -> None:
    async with running_hub(tmp_path) as hub:
        for number in range(40):
            await a_call(hub, f"c{number}", "xylophone" if number == 20 else f"other word{number}")
        assert [call.call_id for call in (await hub.read(lambda d: d.search("xylophone", 9)))[0]] == ["c20"]
        if how == "erased":
            await hub.ended_calls.erase("c20")
        else:
            await hub.ended_calls.expire("c20", (await hub.read(lambda d: d.ended(None, 99)))[20][1])
            await hub.ended_calls.purge()
        assert await hub.read(lambda d: d.search("xylophone", 9)) == ([], None)
        assert len((await hub.read(lambda d: d.search("other", 99)))[0]) == 39
    files = (tmp_path / FILE).read_bytes()  # the store is closed: its log has gone into it
    assert b"word19" in files and b"xylophone" not in files


def test_calls_from_before_the_index_are_in_it(tmp_path: Path) -> None:
    shutil.copy(V1, tmp_path / FILE)
    with sqlite3.connect(tmp_path / FILE) as old:
        texts = [row[0] for row in old.execute("SELECT json ->> '$.text' FROM events WHERE type = 'transcript.final'")]
    old.close()
    said = next(text for text in texts if text)
    database = Database(tmp_path / FILE)
    assert database.search(said, 9)[0]
    database.close()


@given(st.text(max_size=60))
def test_whatever_is_typed_is_a_query(typed: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript("CREATE TABLE events (id INTEGER PRIMARY KEY, call_id TEXT);" + search.SCHEMA)
    if query := search.query_of(typed):
        assert list(search.calls(connection, query, None)) == []
    connection.close()


@given(st.text() | st.dictionaries(st.text(), st.text() | st.none() | st.lists(st.text())).map(json.dumps))
def test_whatever_is_stored_has_words_or_none(frame: str) -> None:
    assert isinstance(search.searchable(frame), str)


def test_words_of_an_event_are_those_by_which_its_call_is_looked_for() -> None:
    def words(**event: object) -> str:
        return search.searchable(json.dumps(event))

    assert words(type="transcript.final", text="good morning", name="nobody") == "good morning"
    assert words(type="leg.updated", name="Bea", label="2", text="no") == "Bea 2"
    call = {"from": "sip:1@a", "to": "sip:2@b", "external_id": "CA7", "call_id": "c9", "custom": {"case": "K 12"}}
    legs = [{"name": "Bea", "label": "in"}, {"name": "", "label": "out"}]
    assert words(type="call.started", legs=legs, **call) == "sip:1@a sip:2@b CA7 c9 Bea in out K 12"
    assert words(type="transcript.partial", text="good") == "" and search.searchable("[") == ""
    assert words(type="transcript.final", text="東京 now") == " 東  京  now"


def test_a_query_is_the_words_that_were_typed_and_the_last_may_go_on() -> None:
    assert search.query_of(" Good  morn") == '"Good" AND "morn"*'
    assert search.query_of("sip:1@a -") == '"sip 1 a"*'
    assert search.query_of("京都") == '"京 都"*'
    assert search.query_of('" - *') == search.query_of("") == ""
    assert search.query_of(" ".join("abcdefghijklmnopqrstuvwxyz")).count("AND") == search.MAX_WORDS - 1


def test_damage_of_the_index_is_told_from_other_errors() -> None:
    for text in ("constraint failed", "SQL logic error", "no such table: words", "invalid fts5 file format (found 1)"):
        assert search.is_damaged(sqlite3.DatabaseError(text)), text
    found = sqlite3.DatabaseError("database disk image is malformed")
    assert not search.is_damaged(found) and not search.is_damaged(sqlite3.OperationalError("no such table: events"))
    found.sqlite_errorcode = sqlite3.SQLITE_CORRUPT_VTAB
    assert search.is_damaged(found)


def test_calls_are_found_once_newest_first_and_page_by_page() -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, call_id TEXT, type TEXT, json TEXT);" + search.SCHEMA
    )
    said = [("a", "blue car"), ("b", "blue sky"), ("a", "a car"), (None, "blue"), ("c", "red"), ("a", "blue again")]
    rows = []
    for row, (call_id, text) in enumerate(said, start=1):
        rows.append((row, "transcript.final", json.dumps({"type": "transcript.final", "text": text})))
        connection.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (row, call_id, *rows[-1][1:]))
    search.add(connection, [*rows, (99, "speech.started", "{}")])
    blue = search.query_of("blue")
    assert list(search.calls(connection, blue, None)) == [(6, "a"), (2, "b")]
    assert list(search.calls(connection, blue, 6)) == [(2, "b")], "a was on the page before, with its row 6"
    assert list(search.calls(connection, blue, 2)) == []
    assert list(search.calls(connection, search.query_of("blue car"), None)) == [(1, "a")]
    search.remove(connection, "call_id = ?", ("a",))
    connection.execute("DELETE FROM events WHERE call_id = 'a'")
    assert list(search.calls(connection, blue, None)) == [(2, "b")]
    begin = True
    while search.merge(connection, begin=begin):
        begin = False
    assert list(search.calls(connection, search.query_of("sky"), None)) == [(2, "b")]
    connection.close()


def test_what_is_removed_leaves_the_index_though_calls_go_on_between_the_pieces() -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript("CREATE TABLE events (id INTEGER PRIMARY KEY, type TEXT, json TEXT);" + search.SCHEMA)

    def say(first: int, *texts: str) -> None:
        for row, text in enumerate(texts, first):
            event = (row, "transcript.final", json.dumps({"type": "transcript.final", "text": text}))
            connection.execute("INSERT INTO events VALUES (?, ?, ?)", event)
            search.add(connection, [event])
        connection.commit()

    def is_written(word: bytes) -> bool:
        return any(word in block for (block,) in connection.execute("SELECT block FROM words_data"))

    say(1, "xylophone", "violin")
    search.remove(connection, "id = ?", (1,))
    connection.commit()
    assert is_written(b"xylophone")
    pieces = 1
    more = search.merge(connection, begin=True)
    while more and pieces < 10:
        say(2 + pieces, "live")
        more, pieces = search.merge(connection, begin=False), pieces + 1
    assert not more and not is_written(b"xylophone") and is_written(b"violin")
    connection.close()
