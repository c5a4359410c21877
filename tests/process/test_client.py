"""`mediaworker.client` against a real server: typed events, over cut connections and restarts, and the routes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lab.events.resuming import cut_and_restart
from lab.events.samples import ended, final, partial, speech
from lab.http.api_server import BOTH_KEY, EVENTS_KEY, running_api
from lab.network.cutting_proxy import CuttingProxy
from mediaworker import client as module
from mediaworker.client import Client, ClientError, CursorExpired, schema


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", (0.01, 0.05))


async def test_events_are_typed_and_the_cursor_goes_on(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api, Client(api.url, key=EVENTS_KEY) as client:
        api.open_call("c1")
        await api.hub.flush()
        stream, seen = client.events(call="c1"), []
        async for event in stream:
            seen.append(event)
            match event.body:
                case schema.Hello(calls=[call]):
                    assert call.call_id == "c1"
                    api.hub.publish("c1", 300, partial("u1", 1))
                    api.hub.publish("c1", 900, final("u1", "hello"))
                case schema.TranscriptFinal(text=text):
                    assert text == "hello"
                    break
        assert [type(event.body) for event in seen] == [
            schema.Hello, schema.TranscriptPartial, schema.TranscriptFinal,
        ]  # fmt: skip
        assert stream.cursor == seen[-1].cursor
        api.hub.publish("c1", 1000, ended())
        later = client.events(call="c1", after=stream.cursor)
        assert [type(event.body) async for event in _until(later, schema.CallEnded)] == [schema.Hello, schema.CallEnded]
        only = client.events(types=["call.ended"], after=f"{stream.cursor.split(':')[0]}:0")
        assert [type(event.body) async for event in _until(only, schema.CallEnded)] == [schema.Hello, schema.CallEnded]


async def _until(stream: Any, kind: type) -> Any:
    async for event in stream:
        yield event
        if isinstance(event.body, kind):
            return


async def test_the_routes(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api, Client(api.url, key=BOTH_KEY) as client:
        for name in ("c1", "c2", "c3"):
            api.open_call(name)
        api.hub.publish("c1", 100, speech("u1"))
        api.hub.publish("c1", 900, final("u1", "good morning"))
        await api.hub.flush()
        items, after = await client.calls(limit=2)
        assert [call.call_id for call in items] == ["c3", "c2"] and after == "c2"
        assert [call.call_id for call in (await client.calls(after=after))[0]] == ["c1"]
        assert [call.call_id for call in (await client.calls(text="good morn"))[0]] == ["c1"]
        assert (await client.rename("c1", {"inbound": "Ann"})).legs[0].name == "Ann"
        assert (await client.set_language("c1", "de")).call_id == "c1" and api.calls["c1"].languages == ["de"]
        assert "good morning" in await client.transcript("c1")
        assert json.loads(await client.transcript("c1", "json"))["call_id"] == "c1"
        with pytest.raises(ClientError, match="409"):
            await client.erase("c1")
        await client.hangup("c1")
        await api.hub.flush()
        del api.calls["c1"]
        assert (await client.call("c1")).reason == "api"
        await client.erase("c1")
        with pytest.raises(ClientError, match="404 no such call"):
            await client.call("c1")


async def test_what_waiting_does_not_help_is_raised(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        for wrong, status in ((Client(api.url), 401), (Client(api.url, key="nobody-knows"), 401)):
            async with wrong:
                with pytest.raises(ClientError) as refused:
                    async for _ in wrong.events():
                        pass
                assert refused.value.status == status and refused.value.detail
                with pytest.raises(ClientError):
                    await wrong.calls()
        async with Client(api.url, key=EVENTS_KEY) as client:
            with pytest.raises(ClientError, match="unknown event type"):
                await anext(client.events(types=["nonsense"]).frames())
            with pytest.raises(CursorExpired):
                async for _ in client.events(after="0abc:77"):
                    pass
            with pytest.raises(ClientError, match="403"):
                await client.hangup("c1")
        url = api.url
    async with Client(url) as client:
        with pytest.raises(OSError):
            async for _ in client.events():
                pass
        with pytest.raises(OSError):
            await client.calls()
        with pytest.raises(ValueError):
            await anext(Client("ftp://host").events().frames())


async def test_a_patient_client_waits_for_a_worker_that_is_not_there_yet(tmp_path: Path) -> None:
    waits: list[float] = []
    async with CuttingProxy() as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        stream = Client(url).events(patient=True, on_retry=lambda reason, seconds: waits.append(seconds)).frames()
        first = asyncio.create_task(anext(stream))
        while len(waits) < 3:  # noqa: ASYNC110  what is waited for tells nobody
            await asyncio.sleep(0.01)
        async with running_api(tmp_path) as api:
            proxy.target = api.server.port
            assert json.loads(await first)["type"] == "hello"
            await stream.aclose()


@pytest.mark.parametrize("types", [None, frozenset({"call.started", "transcript.final"})])
async def test_over_cuts_and_restarts_a_client_sees_the_store_in_order_once(
    tmp_path: Path, types: frozenset[str] | None
) -> None:
    await cut_and_restart(tmp_path, cuts=50, restarts=3, types=types)
