"""Calls are found by what was said in them and by whom, page by page, and not once they are erased."""

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
from tests.support.api_server import Running, running_api
from tests.support.event_samples import ended, final, running_hub, speech, started

V1 = Path(__file__).parents[1] / "data/store-v1.sqlite3"


async def a_call(hub: EventHub, name: str, *said: str, **fields: object) -> None:
    hub.publish(name, 0, started(**fields))  # type: ignore[arg-type]
    for number, text in enumerate(said):
        hub.publish(name, 0, speech(f"{name}/{number}"))
        hub.publish(name, 0, final(f"{name}/{number}", text))
    hub.publish(name, 0, ended())
    await hub.flush()


async def found(api: Running, text: str, **query: str | int) -> list[str]:
    answer = await api.client.get("/v1/calls", params={"text": text, **query})
    assert answer.status_code == 200, answer.text
    return [call["call_id"] for call in answer.json()["items"]]


async def test_calls_are_found_by_what_was_said_and_by_whom(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        await a_call(api.hub, "c1", "Good morning.", "My invoice is wrong.", custom={"topic": "Billing 4711"})
        await a_call(api.hub, "c2", "Grüezi, mein Name ist Müller.", from_="+4930123456")
        await a_call(api.hub, "c3", "你好，我的发票错了。", "invoice number seven")
        assert await found(api, "invoice") == ["c3", "c1"], "the latest first"
        assert await found(api, "WRONG invoice") == ["c1"], "in any order and case"
        assert await found(api, "morning invoice") == [], "both in one utterance"
        assert await found(api, "inv") == ["c3", "c1"], "as it is typed"
        assert await found(api, "muller") == await found(api, "+4930123456") == ["c2"]
        assert await found(api, "发票") == ["c3"], "a script without spaces"
        assert await found(api, "billing") == await found(api, "4711") == ["c1"]
        assert await found(api, "nobody said this") == [] and await found(api, '" OR * NEAR(') == []
        for wrong in ({"text": ""}, {"text": " "}, {"text": "x" * 201}, {"text": "x", "after": "c1"}):
            assert (await api.client.get("/v1/calls", params=wrong)).status_code == 400, wrong


async def test_every_call_is_on_one_page(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        names = [f"c{number:02}" for number in range(25)]
        for name in names:
            await a_call(api.hub, name, "say hello", "say something else", "say hello again")
        pages: list[list[str]] = []
        after: dict[str, str] = {}
        while True:
            answer = (await api.client.get("/v1/calls", params={"text": "hello", "limit": 4, **after})).json()
            pages.append([call["call_id"] for call in answer["items"]])
            if answer["next"] is None:
                break
            after = {"after": answer["next"]}
        assert [name for page in pages for name in page] == names[::-1]
        assert [len(page) for page in pages] == [4] * 6 + [1]


async def test_a_live_call_is_found_as_it_is_now(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        api.hub.publish("c1", 100, final("u1", "where is my parcel"))
        await api.hub.flush()
        (call,) = (await api.client.get("/v1/calls", params={"text": "parcel"})).json()["items"]
        assert (call["call_id"], call["state"], call["said"]["text"]) == ("c1", "live", "where is my parcel")


@pytest.mark.parametrize("how", ["erased", "expired"])
async def test_what_is_erased_is_in_no_index(tmp_path: Path, how: str) -> None:
    async with running_hub(tmp_path) as hub:
        for number in range(40):
            await a_call(hub, f"c{number}", "xylophone" if number == 20 else f"other word{number}")
        assert [call.call_id for call in (await hub.read(lambda d: d.search("xylophone", 9)))[0]] == ["c20"]
        if how == "erased":
            await hub.erase("c20")
        else:
            await hub.expire("c20", (await hub.read(lambda d: d.ended(None, 99)))[20][1])
            await hub.purge()
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
