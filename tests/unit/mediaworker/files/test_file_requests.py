"""Requests with files beyond the limits: they wait in order, briefly, and a few; nobody's places are lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from asr.utterance import EngineStatus
from config import Settings
from config.settings import Files
from mediaworker.files.service import WAITING, Busy, FileService


def service(**files: Any) -> FileService:
    recognizer: Any = SimpleNamespace(state=EngineStatus.READY, engine="qwen")
    settings = replace(Settings(), files=Files(**files))
    return FileService(settings, recognizer, in_work=lambda count: None)


class Requests:
    """Requests that stay in work until they are told to end; `served` has them in the order of their beginning."""

    def __init__(self, files: FileService) -> None:
        self.files = files
        self.served: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    def begin(self, name: str) -> asyncio.Task[None]:
        """Of the key that the name begins with."""
        self.ends[name] = asyncio.Event()
        return asyncio.create_task(self._serve(name))

    async def _serve(self, name: str) -> None:
        async with self.files.admitted(name[0]):
            self.served.append(name)
            await self.ends[name].wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_requests_wait_in_order_and_a_full_key_holds_up_nobody() -> None:
    requests = Requests(service(max_requests=3, max_requests_per_key=2))
    tasks = [requests.begin(name) for name in ("a1", "a2", "a3", "b1", "b2", "c1")]
    await settle()
    assert requests.served == ["a1", "a2", "b1"] and requests.files.waiting == 3
    requests.ends["b1"].set()
    await settle()
    assert requests.served == ["a1", "a2", "b1", "b2"], "a3 has no place of its key, b2 is before c1"
    requests.ends["a1"].set()
    await settle()
    assert requests.served[-1] == "a3" and requests.files.waiting == 1
    for end in requests.ends.values():
        end.set()
    await asyncio.gather(*tasks)
    assert requests.served[-1] == "c1" and requests.files.requests == 0 and requests.files.rejected == 0


async def test_only_so_many_wait_and_only_so_long() -> None:
    requests = Requests(service(max_requests=3, max_requests_per_key=1, queue_s=0.05))
    first = requests.begin("a1")
    waiting = [requests.begin(f"a1{number}") for number in range(WAITING)]
    beyond = requests.begin("a3")
    await settle()
    assert beyond.done() and not any(task.done() for task in waiting), "a few for each that is in work"
    for task in (beyond, *waiting):
        with pytest.raises(Busy, match="1 requests of this key are being served") as busy:
            await task
        assert busy.value.status == 429
    assert requests.files.rejected == 1 + WAITING and requests.files.waiting == 0
    requests.ends["a1"].set()
    await first
    requests.ends["a4"] = asyncio.Event()
    requests.ends["a4"].set()
    await requests._serve("a4")


async def test_a_shutdown_ends_the_waiting() -> None:
    requests = Requests(service(max_requests_per_key=1))
    first, second = requests.begin("a1"), requests.begin("a2")
    await settle()
    draining = asyncio.create_task(requests.files.drain(5.0))
    with pytest.raises(Busy) as busy:
        await second
    assert busy.value.status == 503
    requests.ends["a1"].set()
    await asyncio.gather(first, draining)


@pytest.mark.parametrize("seed", range(20))
async def test_no_place_is_lost_or_given_twice(seed: int) -> None:
    """Requests come, end and are given up at random."""
    chance = random.Random(seed)
    limits = {"max_requests": chance.randint(1, 4), "max_requests_per_key": chance.randint(1, 3)}
    files = service(**limits, queue_s=0.01)
    open_now: Counter[str] = Counter()

    async def request(key: str) -> None:
        async with files.admitted(key):
            open_now[key] += 1
            assert open_now.total() <= files.requests <= limits["max_requests"]
            assert open_now[key] <= limits["max_requests_per_key"]
            try:
                await asyncio.sleep(chance.random() * 0.005)
            finally:
                open_now[key] -= 1

    tasks = []
    for _ in range(60):
        tasks.append(asyncio.create_task(request(chance.choice("abc"))))
        await asyncio.sleep(chance.random() * 0.001)
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in outcomes} <= {type(None), Busy, asyncio.CancelledError}, outcomes
    assert files.requests == files.waiting == 0


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("Qwen/Qwen3-ASR-0.6B", "Qwen/Qwen3-ASR-0.6B"),
        ("/srv/secret/models/ours", "ours"),
        ("./here/ours", "ours"),
        ("~/ours", "ours"),
        ("models/ours", "ours"),
        ("ours/", "ours"),
    ],
)
def test_the_id_of_a_model_is_no_path(model: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "ours").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    files = service()
    files.settings = replace(files.settings, asr=replace(files.settings.asr, model=model))
    assert files.model == shown
