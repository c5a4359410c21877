"""`GET /v1/events` as server-sent events, over a real server: what is sent, resumption, refusals, and slow readers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.events.samples import final, partial, speech, until
from lab.http.api_server import ADMIN_KEY, EVENTS_KEY, Running, bearer, running_api
from lab.patience import timeout
from lab.worker.peers import ROOT
from mediaworker.events.schema import Dtmf

WANTED = {"Accept": "text/event-stream"}


@dataclass
class Message:
    """Fields of the HTML standard's section 9.2.6."""

    event: str = "message"
    id: str | None = None
    retry: int | None = None
    data: list[str] = field(default_factory=list)

    @property
    def json(self) -> dict[str, Any]:
        return json.loads("\n".join(self.data))


async def messages(answer: httpx.Response) -> AsyncIterator[Message]:
    message = Message()
    async for line in answer.aiter_lines():
        if not line:
            if message.data:
                yield message
            message = Message()
        name, _, value = line.partition(": ")
        match name:
            case "data":
                message.data.append(value)
            case "id":
                message.id = value
            case "event":
                message.event = value
            case "retry":
                message.retry = int(value)


@asynccontextmanager
async def following(api: Running, query: str = "", **headers: str) -> AsyncIterator[AsyncIterator[Message]]:
    async with timeout(20), api.client.stream("GET", f"/v1/events{query}", headers=WANTED | headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        yield messages(answer)


async def test_the_same_events_as_on_a_websocket(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        api.open_call("c2")
        await api.hub.flush()
        async with following(api, "?call=c1&types=speech.started,transcript.partial,transcript.final") as events:
            hello = await anext(events)
            assert hello.json["type"] == "hello" and hello.id == hello.json["cursor"] and hello.retry == 1000
            for call_id in ("c2", "c1"):
                api.hub.publish(call_id, 100, speech("u1"))
                api.hub.publish(call_id, 200, partial("u1", 1))
                api.hub.publish(call_id, 900, final("u1", "héllo \U0001f642"))
            seen = [await anext(events) for _ in range(3)]
            assert [each.json["type"] for each in seen] == ["speech.started", "transcript.partial", "transcript.final"]
            assert {each.json["call_id"] for each in seen} == {"c1"} and {each.event for each in seen} == {"message"}
            assert seen[2].json["text"] == "héllo \U0001f642"
            assert [each.id for each in seen] == [seen[0].json["cursor"], None, seen[2].json["cursor"]]
        await until(lambda: api.hub.subscribers == 0)


async def test_it_goes_on_behind_the_last_event_id(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        for digit in "123":
            api.hub.publish("c1", 100, Dtmf("inbound", digit, 80))
        await api.hub.flush()
        store = api.hub.subscribe().cursor.store_id
        async with following(api, f"?after={store}:0&types=dtmf") as events:
            hello, first = await anext(events), await anext(events)
            assert hello.id == f"{store}:0", "what hello is ahead of is still to come"
            assert first.json["digit"] == "1" and first.id == first.json["cursor"]
        # A reconnect asks for the same URL, and for what comes behind the last id.
        async with following(api, f"?after={store}:0&types=dtmf", **{"Last-Event-ID": str(first.id)}) as events:
            assert [(await anext(events)).json.get("digit") for _ in range(3)] == [None, "2", "3"]


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {"Accept": "*/*"}, 426),
        ("", {"Accept": "text/html, application/json"}, 426),
        ("?types=nonsense", {}, 400),
        ("?call=c9", {}, 404),
        ("?call=a&call=b", {}, 400),
        ("?after=nosuch:1", {}, 410),
        ("", {"Last-Event-ID": "nosuch:1"}, 410),
        ("", {"Last-Event-ID": "nonsense"}, 410),
        ("", {"Authorization": "Bearer nobody"}, 401),
        ("", {"Authorization": ""}, 401),
        ("", bearer(ADMIN_KEY), 403),
    ],
)
async def test_refusals_come_before_the_stream(
    tmp_path: Path, query: str, headers: dict[str, str], status: int
) -> None:
    async with running_api(tmp_path, keys=True) as api:
        for method in ("GET", "HEAD"):
            answer = await api.client.request(
                method, f"/v1/events{query}", headers=WANTED | bearer(EVENTS_KEY) | headers
            )
            assert answer.status_code == (status if method == "GET" or status in (401, 403) else 426)
            assert answer.headers["content-type"] == "application/problem+json"
        assert api.hub.subscribers == 0
        kinds = {"Accept": "text/html;q=0.5, TEXT/Event-Stream;q=1"} | bearer(EVENTS_KEY)
        async with api.client.stream("GET", "/v1/events", headers=kinds) as answer:
            assert answer.status_code == 200


async def test_no_more_subscribers_than_allowed(tmp_path: Path) -> None:
    async with running_api(tmp_path, events={"max_subscribers": 1, "heartbeat_s": 1.0}) as api:
        async with following(api) as events:
            await anext(events)
            refused = await api.client.get("/v1/events", headers=WANTED)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            api.hub.subscribe().close()
        await until(lambda: api.hub.subscribers == 0)
        # A stream on which nothing happens says so, and one whose reader has gone is noticed.
        async with api.client.stream("GET", "/v1/events", headers=WANTED) as answer:
            async with timeout(10):
                async for line in answer.aiter_lines():
                    if line.startswith(":"):
                        break


async def test_who_is_too_slow_is_told_and_may_resume(tmp_path: Path) -> None:
    """As on a WebSocket: 4008 with the cursor, here as an event `close`."""
    async with running_api(tmp_path, events={"queue": 16}) as api:
        api.open_call("c1")
        await api.hub.flush()
        count = 0
        async with following(api) as events:
            assert (await anext(events)).json["type"] == "hello"
            while not any(each.overrun for each in api.hub._subscriptions):
                for _ in range(10):
                    api.hub.publish("c1", count, final(f"u{count}", "x" * 40_000))
                    count += 1
                await api.hub.flush()
                await asyncio.sleep(0.002)
                assert count < 5000
            seen, last = 0, None
            async for event in events:
                if event.event == "close":
                    assert event.json == {"code": 4008, "reason": last}
                    break
                assert event.json["at_ms"] == seen and event.id, "in order up to the close"
                seen, last = seen + 1, event.id
            else:
                raise AssertionError("no close")
        assert 0 < seen < count and api.hub.overruns == 1


async def test_a_stop_of_the_worker_is_an_event(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        async with following(api) as events:
            await anext(events)
            await api.hub.stop()
            last = [each async for each in events][-1]
            assert last.event == "close" and last.json["code"] == 1001
        await api.hub.store.start()  # the fixture stops the hub once more


async def test_an_event_source_resumes_without_a_gap(tmp_path: Path) -> None:
    """Node's EventSource, over a cut: what it has missed comes first, and nothing twice."""
    install = ROOT / "tools" / "install_node.sh"
    nodes = await asyncio.to_thread(subprocess.run, [install, sys.executable], capture_output=True, text=True)
    assert nodes.returncode == 0, nodes.stderr
    node = Path(nodes.stdout.splitlines()[-1]) / "24" / "node"
    script = """
      const source = new EventSource(process.argv[1]), hold = setInterval(() => {}, 1000);  // its own timer does not
      source.onmessage = ({ data }) => {
        const { type, digit } = JSON.parse(data);
        console.log(type === "hello" ? "hello" : digit);
        if (digit !== "#") return;
        source.close();
        clearInterval(hold);
      };
    """
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        options = ("--no-warnings", "--experimental-eventsource", "-e", script)
        shown = await asyncio.create_subprocess_exec(
            node, *options, f"{api.url}/v1/events?types=dtmf", stdout=PIPE, stderr=PIPE
        )
        assert shown.stdout is not None

        async def line() -> str:
            async with timeout(20):
                return (await shown.stdout.readline()).decode().strip()  # type: ignore[union-attr]

        try:
            assert await line() == "hello"
            api.hub.publish("c1", 100, Dtmf("inbound", "1", 80))
            assert await line() == "1"
            for subscription in list(api.hub._subscriptions):
                subscription.end(1001, "cut")
            await until(lambda: api.hub.subscribers == 0)
            for digit in "23":
                api.hub.publish("c1", 200, Dtmf("inbound", digit, 80))
            assert [await line() for _ in range(3)] == ["hello", "2", "3"]
            api.hub.publish("c1", 300, Dtmf("inbound", "#", 80))
            assert await line() == "#"
            async with timeout(20):
                assert await shown.wait() == 0
        finally:
            if shown.returncode is None:
                shown.kill()
            await shown.communicate()
