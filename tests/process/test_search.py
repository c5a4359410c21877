"""Calls are found by what was said in them and by whom, page by page, and not once they are erased."""

from __future__ import annotations

from pathlib import Path

from lab.events.samples import final
from lab.events.search import a_call
from lab.http.api_server import Running, running_api


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
