"""The index of words: what is in it, and which queries are possible."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mediaworker.events import search
from mediaworker.events.database import Database
from mediaworker.events.hub import EventHub
from mediaworker.events.store import FILE
from tests.support.event_samples import ended, final, running_hub, speech, started

V1 = Path(__file__).parents[2] / "data/store-v1.sqlite3"


async def a_call(hub: EventHub, name: str, *said: str, **fields: object) -> None:
    hub.publish(name, 0, started(**fields))  # type: ignore[arg-type]
    for number, text in enumerate(said):
        hub.publish(name, 0, speech(f"{name}/{number}"))
        hub.publish(name, 0, final(f"{name}/{number}", text))
    hub.publish(name, 0, ended())
    await hub.flush()


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
