"""The configuration of deploy/haproxy before two workers of a cluster: calls spread, and go on when one is gone."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from lab.network.haproxy import HEADERS, Scene, answers, proxied_cluster
from lab.patience import timeout, until
from lab.worker.peers import alive


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Of all tests: the last one ends one of the workers."""
    with proxied_cluster(tmp_path_factory.mktemp("scene")) as both:
        yield both


async def test_calls_spread_and_one_subscriber_hears_all(scene: Scene) -> None:
    async with connect(
        scene.url("/v1/events"), additional_headers=HEADERS, ssl=scene.trust, max_size=None
    ) as subscriber:
        assert json.loads(await subscriber.recv())["type"] == "hello"
        await asyncio.gather(*(scene.say() for _ in range(6)))
        ended: set[str] = set()
        async with timeout(20):
            while len(ended) < 6:
                event = json.loads(await subscriber.recv())
                if event["type"] == "call.ended":
                    ended.add(event["call_id"])
    assert [scene.opened(each) for each in scene.workers] == [3, 3]


async def test_a_worker_that_drains_keeps_its_calls_and_gets_no_more(scene: Scene) -> None:
    """Also before the proxy has asked it how it is."""
    first, second = scene.workers
    before = [scene.opened(each) for each in scene.workers]
    held = [asyncio.create_task(scene.say(speed=1)) for _ in range(2)]
    await asyncio.to_thread(until, lambda: [scene.opened(each) for each in scene.workers] == [n + 1 for n in before])
    first.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(until, lambda: "draining" in first.log.read_text())
    for _ in range(4):
        assert any(each["type"] == "final" for each in await scene.say(speed=8))
    assert scene.opened(second) == before[1] + 5
    for each in await asyncio.gather(*held):
        assert any(message["type"] == "final" for message in each)


async def test_the_next_call_after_a_kill_is_taken(tmp_path: Path) -> None:
    with proxied_cluster(tmp_path) as scene:
        await calls_go_on(scene)


async def calls_go_on(scene: Scene) -> None:
    first, second = scene.workers
    first.process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(first.process.wait)
    for _ in range(4):
        assert any(each["type"] == "final" for each in await scene.say(speed=8))
        assert answers(scene, "/v1/calls") == 200
    assert scene.opened(second) == 4
    first.start_again()
    await asyncio.to_thread(until, lambda: alive(first), 60)
