"""Subscribers of `/v1/events` that read slowly or not at all: what they cost, what they lose, how they are closed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from lab.events.samples import final, partial, until
from lab.http.api_server import Running, running_api
from lab.patience import timeout
from mediaworker.events.subscription import Subscription
from mediaworker.http.resources import events as resource

SMALL = 4096
"""Bytes that the kernel of a client keeps for it while it does not read."""
LONG = "x" * 700


async def receive(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    async with timeout(10):
        return [json.loads(await socket.recv()) for _ in range(count)]


@asynccontextmanager
async def deaf(api: Running, query: str = "") -> AsyncIterator[ClientConnection]:
    """A client that has shaken hands and reads no more."""
    raw = await small_socket(api)
    client = await connect(api.ws + query, sock=raw, compression=None, max_size=None, ping_interval=None, max_queue=4)
    client.transport.pause_reading()  # type: ignore[attr-defined]
    try:
        yield client
    finally:
        client.transport.abort()
        await client.wait_closed()


async def small_socket(api: Running) -> socket.socket:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", api.server.port))
    return raw


async def followed(api: Running) -> Subscription:
    """The only subscription, once it is live."""
    await until(lambda: [each.live for each in api.hub._subscriptions] == [True])
    (subscription,) = api.hub._subscriptions
    return subscription


async def say(api: Running, start: int, count: int) -> None:
    """Finals of about a kilobyte each, one after the other."""
    for number in range(start, start + count):
        api.hub.publish("c1", number, final(f"u{number}", LONG))
        await api.hub.flush()


@pytest.mark.parametrize("query", ["", "?call=c1", "?types=transcript.final", "?after=START"])
async def test_little_is_sent_to_a_client_that_never_reads(tmp_path: Path, query: str) -> None:
    """It would be megabytes, in the kernel's buffers, and work that the other subscribers wait for."""
    async with running_api(tmp_path) as api:
        start = str(api.hub.cursor)
        api.open_call("c1")
        await api.hub.flush()
        async with deaf(api, query.replace("START", start)):
            subscription = await followed(api)
            await say(api, 0, 150)
            await until(lambda: subscription.waiting >= 100)


async def test_little_is_sent_to_a_reader_of_server_sent_events_that_never_reads(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        raw = await small_socket(api)
        request = b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(raw, request)
        subscription = await followed(api)
        await say(api, 0, 150)
        await until(lambda: subscription.waiting >= 100)
        raw.close()


async def test_nothing_is_done_for_a_client_that_never_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its buffers are full: no write, and no turn of its task."""
    taken = 0
    take = Subscription._pop

    def counted(subscription: Subscription) -> str | None:
        nonlocal taken
        taken += 1
        return take(subscription)

    monkeypatch.setattr(Subscription, "_pop", counted)
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        async with deaf(api):
            subscription = await followed(api)
            await say(api, 0, 100)
            await until(lambda: subscription.waiting > 0)
            (connection,) = api.server.guard.connections
            unsent, before, waiting = connection.transport.get_write_buffer_size(), taken, subscription.waiting
            for revision in range(200):
                api.hub.publish("c1", revision, partial("u", revision))
            await say(api, 100, 50)
            assert subscription.waiting == waiting + 51, "of the partials the newest waits"
            assert (connection.transport.get_write_buffer_size(), taken) == (unsent, before)


async def test_a_client_that_keeps_up_wakes_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_out: list[str] = []
    take = Subscription._pop

    def noted(subscription: Subscription) -> str | None:
        if (frame := take(subscription)) is not None:
            handed_out.append(json.loads(frame)["type"])
        return frame

    monkeypatch.setattr(Subscription, "_pop", noted)
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        async with connect(api.ws) as client:
            await receive(client, 1)
            subscription = await followed(api)
            await until(lambda: subscription._waiter is not None)
            for number in range(20):
                api.hub.publish("c1", number, partial(f"u{number}", 1))
                api.hub.publish("c1", number, final(f"u{number}"))
                cursor = (await receive(client, 2))[1]["cursor"]
            assert str(subscription.cursor) == cursor
    assert handed_out == ["hello"]


@pytest.mark.parametrize("at_once", [0, 1, 7, 100])
async def test_what_is_sent_at_once_and_what_waits_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Those who publish send so much in a turn of the loop; the rest is for the tasks of the subscribers."""
    monkeypatch.setattr(resource, "AT_ONCE", at_once)
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        clients = [await connect(api.ws) for _ in range(6)]
        for client in clients:
            await receive(client, 1)
        await until(lambda: all(each._waiter is not None for each in api.hub._subscriptions))
        for number in range(40):
            api.hub.publish("c1", number, partial(f"u{number}", 1))
            api.hub.publish("c1", number, final(f"u{number}"))
            if number % 5 == 0:
                await api.hub.flush()
        for client in clients:
            async with timeout(10):
                found = await receive(client, 80)
            assert [(each["utterance_id"], each["type"]) for each in found] == [
                (f"u{number}", kind) for number in range(40) for kind in ("transcript.partial", "transcript.final")
            ]
        for client in clients:
            await client.close()


async def test_a_client_that_reads_by_fits_and_starts_loses_no_final(tmp_path: Path) -> None:
    async with running_api(tmp_path, events={"queue": 5000}) as api:
        api.open_call("c1")
        await api.hub.flush()
        async with deaf(api) as client:
            subscription = await followed(api)
            seen: list[int] = []
            said = 0
            for _ in range(5):
                client.transport.pause_reading()  # type: ignore[attr-defined]
                while subscription.waiting == 0 or said % 50:
                    await say(api, said, 10)
                    api.hub.publish("c1", said, partial("u", said))
                    said += 10
                client.transport.resume_reading()  # type: ignore[attr-defined]
                while len(seen) < said:
                    (event,) = await receive(client, 1)
                    if event["type"] == "transcript.final":
                        seen.append(event["at_ms"])
                await until(lambda: subscription._waiter is not None)
            assert seen == list(range(said))


async def test_a_client_that_does_not_read_is_closed_and_resumes(tmp_path: Path) -> None:
    async with running_api(tmp_path, events={"queue": 16}) as api:
        api.open_call("c1")
        await api.hub.flush()
        count = 0
        async with connect(api.ws, max_queue=1, max_size=None) as socket:
            (hello,) = await receive(socket, 1)
            while api.hub.overruns == 0 and not any(s.overrun for s in api.hub._subscriptions):
                for _ in range(10):
                    api.hub.publish("c1", count, final(f"u{count}", "x" * 40_000))
                    count += 1
                await api.hub.flush()
                await asyncio.sleep(0.002)
                assert count < 5000
            seen, last = 0, hello["cursor"]
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    event = (await receive(socket, 1))[0]
                    assert event["at_ms"] == seen, "in order up to the close"
                    seen, last = seen + 1, event["cursor"]
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4008, last)
        assert 0 < seen < count
        async with connect(f"{api.ws}?after={last}", max_size=None) as socket:
            rest = (await receive(socket, count - seen + 1))[1:]
            assert [event["at_ms"] for event in rest] == list(range(seen, count))
        assert api.hub.overruns == 1


async def test_a_client_that_is_dead_is_cut(tmp_path: Path) -> None:
    """It neither reads nor answers pings; bytes for it wait in the server. Its end must come all the same."""
    async with running_api(tmp_path, events={"heartbeat_s": 1}) as api:
        api.open_call("c1")
        await api.hub.flush()
        socket = await connect(api.ws, ping_interval=None, max_queue=1)
        await receive(socket, 1)
        socket.transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(400):
            api.hub.publish("c1", number, final(f"u{number}", "x" * 40_000))
        (subscription,) = api.hub._subscriptions
        await api.hub.flush()
        assert subscription.waiting > 0
        await until(lambda: api.hub.subscribers == 0)
        assert api.hub.overruns == 0
        socket.transport.abort()
        await socket.wait_closed()
