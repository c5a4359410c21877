"""Workers that are joined by NATS, and a client that follows the events of any of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import nats
from websockets.asyncio.client import ClientConnection, connect

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.network.nats_servers import NatsServer
from lab.patience import timeout, until
from lab.worker.peers import Worker, worker
from lab.worker.ws_calls import CODES, config, told, url


def environ(*servers: NatsServer | str, replicas: int = 1, **more: str) -> dict[str, str]:
    urls = [each if isinstance(each, str) else each.url for each in servers]
    return {
        "CLUSTER__NATS": json.dumps(urls), "CLUSTER__REPLICAS": str(replicas), "SIP__ENABLED": "false",
        "ASR__ENGINE": "moonshine", **more,
    }  # fmt: skip


@contextmanager
def members(folder: Path, names: str, *servers: NatsServer | str, **more: Any) -> Iterator[list[Worker]]:
    """Workers of a cluster, once they have joined it, with an engine that costs nothing. A letter names each."""
    with ExitStack() as stack:
        started = []
        for name in names:
            (folder / name).mkdir(parents=True)
            started.append(
                stack.enter_context(worker(folder / name, LISTENER_PATH, **environ(*servers, **LISTENER | more)))
            )
        for each in started:
            until(lambda each=each: joined(each), 60)
        yield started


async def leases_renewed(server: NatsServer, times: int) -> None:
    """Until the workers of the cluster, all together, have renewed their leases so often."""
    client = await nats.connect(server.url)
    try:

        async def renewals() -> int:
            info = await client.jetstream().stream_info("KV_MEDIAWORKER_WORKERS")
            return int(info.state.last_seq)

        before = await renewals()
        async with timeout(40):
            while await renewals() < before + times:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    finally:
        await client.close()


def joined(running: Worker) -> bool:
    return "cluster joined" in running.log.read_text()


class Follower:
    """A subscriber, and all that it has been told."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.heard = socket, list[dict[str, Any]]()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for frame in self.socket:
            self.heard.append(json.loads(frame))

    async def until(self, type_: str, count: int = 1, within_s: float = 30) -> None:
        async with timeout(within_s):
            while sum(each["type"] == type_ for each in self.heard) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    @property
    def hello(self) -> dict[str, Any]:
        return self.heard[0]

    def story(self, call_id: str) -> list[dict[str, Any]]:
        """The durable events of a call."""
        seen = [each for each in self.heard if each["call_id"] == call_id and not transient(each)]
        assert [each["seq"] for each in seen] == sorted({each["seq"] for each in seen}), "each once, in order"
        return seen

    async def stop(self) -> None:
        await self.socket.close()
        await asyncio.gather(self._task, return_exceptions=True)


def transient(event: dict[str, Any]) -> bool:
    return event["type"] in ("hello", "lagged", "transcript.partial") or (
        event["type"] == "metrics" and not event.get("durable")
    )


@asynccontextmanager
async def following(running: Worker, after: str = "") -> AsyncIterator[Follower]:
    """It sends no pings: a worker may stand still for longer than it would be waited for."""
    query = f"?after={after}" if after else ""
    async with connect(
        f"ws://127.0.0.1:{running.http_port}/v1/events{query}", max_size=None, ping_interval=None
    ) as socket:
        follower = Follower(socket)
        await follower.until("hello")
        yield follower
        await follower.stop()


async def say(running: Worker, speed: float = 8) -> str:
    """A whole call, so many times as fast as it was spoken. -> its id."""
    heard = await told(url(running, "asr"), config(), CODES, speed=speed)
    (call,) = [each for each in running.calls() if each["external_id"] == heard[0]["session_id"]]
    return str(call["call_id"])
