"""`WS /v1/events` over a real server with a real client: hello, live, resumption, closes, and who leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from lab.events.samples import final, partial, speech, until
from lab.http.api_server import Running, running_api
from lab.patience import timeout
from mediaworker.events.frame import decode
from mediaworker.events.schema import Dtmf


async def receive(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    async with timeout(10):
        return [json.loads(await socket.recv()) for _ in range(count)]


async def close_code(socket: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as closed:
        async with timeout(20):
            while True:
                await socket.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


async def test_hello_then_live(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        async with connect(api.ws) as socket:
            (hello,) = await receive(socket, 1)
            assert (hello["v"], hello["type"], hello["call_id"]) == (1, "hello", None)
            assert hello["server"].startswith("mediaworker/")
            assert hello["engine"] == {"name": "", "state": "idle"}
            assert [call["call_id"] for call in hello["calls"]] == ["c1"]
            assert hello["calls"][0]["from"] == "+1"
            api.hub.publish("c1", 100, speech("u1", start_ms=40))
            api.hub.publish("c1", 200, partial("u1", 1))
            api.hub.publish("c1", 900, final("u1", "héllo 🙂"))
            events = await receive(socket, 3)
            assert [event["type"] for event in events] == ["speech.started", "transcript.partial", "transcript.final"]
            assert [event["seq"] for event in events] == [2, 2, 3]
            assert events[2]["text"] == "héllo 🙂"
            assert (await api.client.get("/v1/calls/c1")).json()["seq"] == 3
        await until(lambda: api.hub.subscribers == 0)


BEAT = {"v": 1, "type": "heartbeat"}


def ask(every_s: int) -> str:
    return json.dumps({"type": "heartbeat", "every_s": every_s})


async def test_a_heartbeat_comes_to_whoever_asks_for_it(tmp_path: Path) -> None:
    """The first behind `hello`, also where that is followed by a replay; nobody else ever sees one."""
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        start = f"{api.hub.cursor.store_id}:0"
        async with connect(api.ws) as socket, connect(api.ws) as plain:
            await socket.send(ask(1))
            hello, *beats = await receive(socket, 4)
            assert hello["type"] == "hello" and beats == [BEAT] * 3
            async with connect(f"{api.ws}?types=call.started&after={start}") as replaying:
                await replaying.send(ask(3600))
                hello, *more = await receive(replaying, 3)
                assert hello["type"] == "hello" and BEAT in more
                assert [event["type"] for event in more if event != BEAT] == ["call.started"]
            api.hub.publish("c1", 100, Dtmf("inbound", "1", 80))
            assert [event["type"] for event in await receive(plain, 2)] == ["hello", "dtmf"]
            assert "dtmf" in [event["type"] for event in await receive(socket, 2)]
        await until(lambda: api.hub.subscribers == 0)


@pytest.mark.parametrize(
    "said",
    [
        ask(0),
        ask(3601),
        ask(10**30),
        '{"type": "heartbeat"}',
        '{"type": "heartbeat", "every_s": 1.5}',
        '{"type": "heartbeat", "every_s": "1"}',
        '{"type": "heartbeat", "every_s": null}',
        '{"type": "ping", "every_s": 1}',
        '[{"type": "heartbeat", "every_s": 1}]',
        '{"type": "heartbeat", "every_s": 1',
        "[" * 60_000,
        '{"type": "heartbeat", "x": ' + "[" * 60_000,
        "\0",
        ask(1).encode(),
    ],
)
async def test_what_asks_for_no_heartbeat_gets_none(tmp_path: Path, said: str | bytes) -> None:
    async with running_api(tmp_path) as api:
        async with connect(api.ws) as socket:
            await socket.send(said)
            await socket.send(ask(3600))  # read behind it: by then the worker has made of it what it does
            assert [event["type"] for event in await receive(socket, 2)] == ["hello", "heartbeat"]
            api.open_call("c1")
            assert [event["type"] for event in await receive(socket, 1)] == ["call.started"]


async def test_filters(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        api.open_call("c2")
        await api.hub.flush()
        async with connect(f"{api.ws}?call=c2&types=transcript.final,%20dtmf&types=alert") as socket:
            (hello,) = await receive(socket, 1)
            assert [call["call_id"] for call in hello["calls"]] == ["c2"]
            for call_id in ("c1", "c2"):
                api.hub.publish(call_id, 0, speech(f"u-{call_id}"))
                api.hub.publish(call_id, 0, partial(f"u-{call_id}", 1))
                api.hub.publish(call_id, 0, final(f"u-{call_id}"))
                api.hub.publish(call_id, 0, Dtmf("inbound", "1", 80))
            events = await receive(socket, 2)
            assert [(e["call_id"], e["type"]) for e in events] == [("c2", "transcript.final"), ("c2", "dtmf")]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("types=", 400),
        ("types=dtmf,", 400),
        ("types=transcript", 400),
        ("types=DTMF", 400),
        ("call=", 101),
        ("call=*", 101),
        ("call=%2A", 101),
        ("call=c1", 101),
        ("call=c2", 404),
        ("call=c1&call=c1", 400),
        ("call=a%20b", 400),
        ("call=%00", 400),
        ("call=" + "x" * 129, 400),
        ("call=c1'--", 400),
        ("after=x:1&after=x:1", 400),
        ("types=hello,lagged,metrics&other=1", 101),
    ],
)
async def test_queries(tmp_path: Path, query: str, status: int) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        if status == 101:
            async with connect(f"{api.ws}?{query}") as socket:
                assert (await receive(socket, 1))[0]["type"] == "hello"
            return
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"{api.ws}?{query}"):
                raise AssertionError("accepted")
        response = refused.value.response
        assert response.status_code == status
        assert response.headers["content-type"] == "application/problem+json"
        assert json.loads(response.body)["status"] == status
        assert api.hub.subscribers == 0


@pytest.mark.parametrize(
    "cursor", ["", "x", "nosuch:1", "{store}:1", "{store}:999999999999999999", "%FF:1", "{store}:1'"]
)
async def test_unknown_cursors_are_closed_with_4009(tmp_path: Path, cursor: str) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        store = api.hub.subscribe().cursor.store_id
        async with connect(f"{api.ws}?after={cursor.format(store=store)}") as socket:
            code, reason = await close_code(socket)
        assert code == 4009
        assert "cursor" in reason


@settings(max_examples=10)
@given(st.binary(max_size=60))
def test_no_query_makes_an_error_of_ours(query: bytes) -> None:
    """Whatever stands behind the question mark, the answer is one of those documented."""
    allowed = bytes(byte for byte in query if 33 <= byte < 127 and byte != 35).decode()

    async def ask(directory: Path) -> None:
        async with running_api(directory) as api:
            try:
                async with connect(f"{api.ws}?{allowed}") as socket:
                    try:
                        await receive(socket, 1)
                    except ConnectionClosed as closed:
                        assert closed.rcvd is not None
                        assert closed.rcvd.code == 4009
            except InvalidStatus as refused:
                assert refused.response.status_code in (400, 404)

    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(ask(Path(directory)))


async def test_resumption_has_no_gap_and_no_double(tmp_path: Path) -> None:
    """The connection is cut again and again while events go on, and once the worker is restarted."""
    seen: list[tuple[str, int]] = []
    cursor = ""

    async def follow(api: Running, count: int) -> None:
        nonlocal cursor
        async with connect(api.ws + (f"?after={cursor}" if cursor else "")) as socket:
            (hello,) = await receive(socket, 1)
            assert hello["type"] == "hello"
            cursor = cursor or hello["cursor"]
            for event in await receive(socket, count):
                cursor = event["cursor"]
                if event["type"] != "transcript.partial":
                    seen.append((event["call_id"], event["seq"]))
            socket.transport.abort()
            await socket.wait_closed()

    async with running_api(tmp_path, events={"queue": 5000}) as api:  # nobody is too slow
        await follow(api, 0)
        api.open_call("c1")

        async def talk() -> None:
            for number in range(600):
                api.hub.publish("c1", number, speech(f"u{number}"))
                api.hub.publish("c1", number, partial(f"u{number}", 1))
                api.hub.publish("c1", number, final(f"u{number}"))
                await asyncio.sleep(0.001 if number % 10 == 0 else 0)

        talking = asyncio.ensure_future(talk())
        for _ in range(8):
            await follow(api, 40)
        await talking
    async with running_api(tmp_path, events={"queue": 5000}) as api:
        total = 1 + 2 * 600 + 1
        await follow(api, total - len(seen))
    assert seen == [("c1", seq) for seq in range(1, total + 1)]


async def test_many_subscribers_get_the_same(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        sockets = [await connect(api.ws) for _ in range(30)]
        for number in range(50):
            api.hub.publish("c1", number, Dtmf("inbound", "1", number))
        found = await asyncio.gather(*(receive(socket, 51) for socket in sockets))
        assert all(frames[1:] == found[0][1:] for frames in found)
        for socket in sockets:
            socket.transport.abort()
            await socket.wait_closed()
        await until(lambda: api.hub.subscribers == 0)


async def test_there_is_a_limit_of_subscribers(tmp_path: Path) -> None:
    async with running_api(tmp_path, events={"max_subscribers": 1}) as api:
        async with connect(api.ws) as socket:
            await receive(socket, 1)
            with pytest.raises(InvalidStatus) as refused:
                async with connect(api.ws):
                    raise AssertionError("accepted")
            assert refused.value.response.status_code == 503
        await until(lambda: api.hub.subscribers == 0)
        async with connect(api.ws):
            pass


async def test_what_a_client_says_is_ignored(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        async with connect(api.ws) as socket:
            await receive(socket, 1)
            for message in ("{", b"\x00\xff", '{"type":"config"}', ""):
                await socket.send(message)
            await socket.ping()
            api.hub.publish("c1", 5, Dtmf("inbound", "7", 80))
            while (event := (await receive(socket, 1))[0])["type"] != "dtmf":
                pass
            assert event["digit"] == "7"
            await socket.send("x" * 70_000)
            assert (await close_code(socket))[0] == 1009
        await until(lambda: api.hub.subscribers == 0)


async def test_the_worker_says_goodbye(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        async with connect(api.ws) as socket:
            await receive(socket, 1)
            api.hub.publish("c1", 5, Dtmf("inbound", "7", 80))
            await api.hub.stop()
            events = []
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    events += await receive(socket, 1)
            assert events[-1]["type"] == "dtmf", "what was published before the stop still arrives"
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
        await api.hub.store.start()  # the fixture stops the hub once more


async def test_stopping_the_server_does_not_wait_for_subscribers(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        socket = await connect(api.ws)
        await receive(socket, 1)
        async with timeout(10):
            await api.server.stop()
        assert (await close_code(socket))[0] in (1001, 1012)
        await socket.wait_closed()
        assert api.hub.subscribers == 0


async def test_frames_are_what_the_schema_decodes(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        async with connect(api.ws) as socket:
            hello = await socket.recv()
            api.open_call("c1")
            frames = [hello, await socket.recv()]
        assert all(isinstance(frame, str) for frame in frames)
        assert [decode(frame).call_id for frame in frames] == [None, "c1"]
