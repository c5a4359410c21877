"""Erased is erased: what was said and what was sent is in no file of workers, of NATS, or of a temporary folder."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import wave
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import nats as nats_client
import numpy as np
import pytest

from config.load import parse
from lab.chaos.jobs import recording
from lab.engine.limits import limit, limited
from lab.engine.listener import LISTENER, Limit
from lab.events.marks import found
from lab.network.nats_servers import NatsServer, nats
from lab.patience import eventually, seconds, until
from lab.worker.cluster import environ, following, joined
from lab.worker.jobs import ended, made, upload
from lab.worker.peers import Worker, worker
from lab.worker.ws_calls import CODES, config, told, url
from mediaworker.cluster.connection import NatsConnection
from mediaworker.cluster.erasure import overwrite

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


async def test_every_worker_tells_once_who_had_a_call_erased(scene: Scene) -> None:
    a, b = scene.workers
    async with following(a) as at_a, following(b) as at_b:
        call_ids = [(await a_call(a, CODES))[0] for _ in range(2)]
        await at_b.until("call.ended", 2)
        for by, call_id in zip((scene.a, scene.b), call_ids, strict=True):
            assert by.delete(f"/v1/calls/{call_id}").status_code == 204
        for follower in (at_a, at_b):
            await follower.until("call.erased", 2)
        await a_call(b, CODES[2400:])  # whatever would come twice has come by then
        for follower in (at_a, at_b):
            await follower.until("call.ended", 3)
            told = [each for each in follower.heard if each["type"] == "call.erased"]
            assert sorted(each["call_id"] for each in told) == sorted(call_ids)
            assert {each["by"] for each in told} == {"loopback"}
        between = next(each for each in at_a.heard if each["type"] == "call.erased")["cursor"]
    async with following(b, between) as later:  # a cursor of the other worker, right behind the first of them
        await later.until("call.erased")
        await later.until("call.ended")
        assert [each["type"] for each in later.heard].count("call.erased") == 1
    logs = [each.log.read_text() for each in scene.workers]
    assert [text.count("call erased") for text in logs] == [1, 1]


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


@pytest.mark.parametrize(
    ("limits", "everywhere"),
    [({"RETENTION__MAX_AGE_DAYS": "0.00001"}, True), ({"CLUSTER__KEEP_DAYS": "0.00001"}, False)],
    ids=["retention", "keep_days"],
)
async def test_what_is_too_old_is_in_no_file(
    tmp_path: Path, limited: Limit, limits: dict[str, str], everywhere: bool
) -> None:
    with nats(tmp_path / "nats") as (server,):
        with started(tmp_path, "a", server, limited) as running:
            _, said = await a_call(running, CODES)
        client = await nats_client.connect(server.url)
        await client.jetstream().publish("mediaworker.events.somebody.else", b"this stays, and so does its block")
        with started(tmp_path, "a", server, limited, **limits) as running:
            scene = Scene(tmp_path, server, running, running)
            with scene.a, scene.b:
                places = [tmp_path / "nats", *([tmp_path / "a" / "data"] if everywhere else [])]
                await asyncio.to_thread(until, lambda: not found(said, *places))
        await client.close()


async def test_messages_are_overwritten_and_their_neighbours_are_not(tmp_path: Path) -> None:
    """By subject, by number and by age; whatever another worker deletes meanwhile."""
    with nats(tmp_path / "nats") as (server,):
        connection = NatsConnection(
            parse({"cluster": {"nats": [server.url], "replicas": 1}}).cluster, worker="test", on_ready=_nothing
        )
        connection.start()
        await eventually(lambda: not connection.trouble)
        js, data = connection.js, tmp_path / "nats"
        await js.add_stream(name="S", subjects=["s.>"])
        for number in range(300):
            await js.publish(f"s.{number % 3}", f"mark {number:03}".encode())
        assert await overwrite(connection, "S", "s.0", before=100) == 33
        assert sorted(found([f"mark {number:03}" for number in range(0, 300, 3)], data)) == [
            f"mark {number:03}" for number in range(99, 300, 3)
        ]
        assert await js.delete_msg("S", 2)
        both = await asyncio.gather(*(overwrite(connection, "S", "s.1") for _ in range(2)), return_exceptions=True)
        assert sum(count for count in both if isinstance(count, int)) <= 99
        await overwrite(connection, "S", "s.1")
        assert not found([f"mark {number:03}" for number in range(1, 300, 3)], data)
        middle = (await js.get_msg("S", 150)).time
        assert middle is not None
        await overwrite(connection, "S", ">", older_than_s=middle.timestamp())
        left = [int(mark[5:]) for mark in found([f"mark {number:03}" for number in range(300)], data)]
        assert min(left) == 149 and {number % 3 for number in left} == {0, 2}
        assert await overwrite(connection, "S", "s.nobody") == 0
        await js.add_stream(name="D", subjects=["d.>"], deny_delete=True)  # a bucket of an older version
        await js.publish("d.0", b"what is only forgotten")
        assert await overwrite(connection, "D", "d.0") == 0
        assert (await js.stream_info("D")).state.messages == 0
        await connection.stop()


async def _nothing() -> None:
    pass


def test_a_mark_is_found_in_whatever_form(tmp_path: Path) -> None:
    text, sound = 'Zoë said "Ærø" twice', bytes(range(40, 90))
    written = [text.encode(), json.dumps(text).encode(), gzip.compress(text.encode()), zlib.compress(text.encode())]
    written += [base64.b64encode(b"x" * n + text.encode()) for n in range(3)]
    for number, data in enumerate(written):
        (tmp_path / f"{number}").write_bytes(b"before" + data + b"behind")
    (tmp_path / "sound").write_bytes(base64.b64encode(b"12" + sound + b"3"))
    assert sorted(Path(each).name for each in found([text], tmp_path)[text]) == [str(n) for n in range(len(written))]
    assert found([sound, "Zoe"], tmp_path) == {str(sound): [str(tmp_path / "sound")]}
