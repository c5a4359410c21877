"""Erased is erased: what was said and what was sent is in no file of workers, of NATS, or of a temporary folder."""

from __future__ import annotations

import asyncio
import contextlib
import wave
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from lab.chaos.jobs import recording
from lab.engine.limits import limit, limited
from lab.engine.listener import LISTENER, Limit
from lab.events.marks import found
from lab.network.nats_servers import NatsServer, nats
from lab.patience import seconds, until
from lab.worker.cluster import environ, joined
from lab.worker.jobs import ended, made, upload
from lab.worker.peers import Worker, worker
from lab.worker.ws_calls import CODES, config, told, url

__all__ = ["limit", "limited"]


class Scene:
    """Two workers, a NATS server, and everything that they write."""

    def __init__(self, folder: Path, server: NatsServer, a: Worker, b: Worker) -> None:
        self.folder, self.server, self.workers = folder, server, (a, b)
        self.a, self.b = (httpx.Client(base_url=each.url, timeout=seconds(30)) for each in (a, b))

    def found(self, *marks: str | bytes) -> dict[str, list[str]]:
        processes = [each.process.pid for each in (*self.workers, self.server)]
        places = [each for each in self.folder.iterdir() if each.name != "media"]
        files = found(marks, *places, processes=processes)
        left = {mark: [each for each in where if not each.endswith(".log")] for mark, where in files.items()}
        return {mark: where for mark, where in left.items() if where}

    def await_gone(self, *marks: str | bytes) -> None:
        left: dict[str, list[str]] = {}
        with contextlib.suppress(AssertionError):
            until(lambda: not left.clear() and not left.update(self.found(*marks)) and not left, 15)
        assert not left

    def in_nats(self, mark: str | bytes) -> bool:
        return any("/jetstream/" in each for where in self.found(mark).values() for each in where)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, limited: Limit) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("erasure")
    with nats(folder / "nats") as (server,), ExitStack() as stack:
        running = [stack.enter_context(started(folder, name, server, limited)) for name in "ab"]
        found = Scene(folder, server, *running)
        with found.a, found.b:
            yield found


@contextmanager
def started(folder: Path, name: str, server: NatsServer, limited: Limit, **more: str) -> Iterator[Worker]:
    temporary = folder / f"tmp-{name}"
    temporary.mkdir(exist_ok=True)
    (folder / name).mkdir(exist_ok=True)
    options = {**environ(server), **LISTENER, "FILES__PARALLEL_SEGMENTS": "1", "JOBS__PARALLEL": "1", **more}
    with worker(folder / name, limited.environ | {"TMPDIR": str(temporary)}, **options) as running:
        until(lambda: joined(running))
        yield running


async def a_call(running: Worker, codes: bytes) -> tuple[str, list[str]]:
    """An ended call. -> its id, and what was said in it, a final each."""
    heard = await told(url(running, "asr"), config(), codes, speed=16)
    (call,) = [each for each in running.calls() if each["external_id"] == heard[0]["session_id"]]
    finals = [each["text"] for each in heard if each["type"] == "final" and each["text"].count(" ") > 2]
    assert finals
    return str(call["call_id"]), finals


NAMES = ("Zoë Quackenbush-Ærøskøbing", "Wolfgang-Xaver Überlingen")


async def test_a_call_that_is_deleted_is_in_no_file(scene: Scene) -> None:
    a, b = scene.workers
    await a_call(b, CODES[800:])  # stays, and so do the blocks that both lie in
    call_id, said = await a_call(a, CODES)
    await a_call(b, CODES[1600:])
    until(lambda: scene.b.get(f"/v1/calls/{call_id}").json().get("state") == "ended")
    for by, name in ((scene.b, NAMES[0]), (scene.a, NAMES[1])):  # the first is a name of the past
        assert by.patch(f"/v1/calls/{call_id}", json={"names": {"main": name}}).status_code == 200
    until(lambda: all(scene.in_nats(mark) for mark in (*said, *NAMES)))
    assert scene.b.delete(f"/v1/calls/{call_id}").status_code == 204
    await asyncio.to_thread(scene.await_gone, *said, *NAMES)


def recorded(folder: Path, seed: int) -> tuple[Path, list[bytes]]:
    """A file, and pieces of its audio that are in no other one."""
    path = folder / "media" / f"Gespräch mit Ærø {seed}.wav"
    path.parent.mkdir(exist_ok=True)
    recording(path, 4, seed)
    with wave.open(str(path), "rb") as file:
        shape, samples = file.getparams(), np.frombuffer(file.readframes(file.getnframes()), np.int16)
    noise = np.random.default_rng(seed).integers(-40, 40, samples.shape)  # two recordings may have a prompt in common
    sound = (samples // 2 + noise).astype("<i2").tobytes()
    with wave.open(str(path), "wb") as file:
        file.setparams(shape)
        file.writeframes(sound)
    return path, [sound[at : at + 64] for at in range(20_000, len(sound) - 64, 20_000)]


def test_a_job_leaves_no_audio_behind_when_it_ends_and_no_text_when_it_is_deleted(scene: Scene, limit: Limit) -> None:
    limit.set(1)
    path, audio = recorded(scene.folder, 1)
    other, _ = recorded(scene.folder, 2)
    one = made(upload(scene.a, path, prompt="Ask for Quintilla Ørsted"))
    stays = made(upload(scene.b, other))
    until(lambda: scene.in_nats(audio[-1]))
    limit.lift()
    assert ended(scene.b, one)["status"] == "completed"
    scene.await_gone(*audio)
    said = [
        each["text"] for each in scene.a.get(f"/v1/jobs/{one}/result", params={"format": "json"}).json()["segments"]
    ]
    marks = [*said, path.name, "Quintilla Ørsted"]
    assert all(scene.in_nats(mark) for mark in marks)
    assert ended(scene.b, stays)["status"] == "completed"
    assert scene.b.delete(f"/v1/jobs/{one}").status_code == 204
    scene.await_gone(*marks)
    assert scene.a.get(f"/v1/jobs/{stays}/result", params={"format": "json"}).json()["segments"]


def test_a_job_that_is_cancelled_leaves_nothing_behind(scene: Scene, limit: Limit) -> None:
    limit.set(1)
    path, audio = recorded(scene.folder, 3)
    job_id = made(upload(scene.a, path))
    stays = made(upload(scene.b, recorded(scene.folder, 4)[0]))
    until(lambda: scene.in_nats(audio[-1]))
    assert scene.b.delete(f"/v1/jobs/{job_id}").status_code == 200, "cancelled"
    scene.await_gone(*audio)
    assert scene.b.delete(f"/v1/jobs/{job_id}").status_code == 204
    scene.await_gone(path.name)
    limit.lift()
    assert ended(scene.a, stays)["status"] == "completed"
