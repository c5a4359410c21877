"""Jobs of workers that share NATS JetStream: any of them runs, shows, cancels and erases each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import nats as nats_client
import pytest
from uuid_utils import uuid7

from config.load import parse
from lab.chaos.jobs import recording
from lab.http.receiver import SECRET, receiving, told
from lab.network.nats_servers import NatsServer, nats
from lab.patience import until
from lab.worker.cluster import environ, joined
from lab.worker.jobs import ended, folder, jobs, made, name, upload
from lab.worker.peers import Worker, alive, worker
from mediaworker.cluster.connection import CancellableClient, NatsConnection
from mediaworker.cluster.jobs import ClusterJobStore
from mediaworker.files.options import Options
from mediaworker.jobs.record import Job, Source
from mediaworker.jobs.sources import Sources

OPTIONS = {
    "ASR__THREADS": "1", "FILES__PARALLEL_SEGMENTS": "1", "LOG__LEVEL": "debug", "JOBS__PARALLEL": "1",
    "JOBS__WEBHOOK_SECRET": SECRET, "JOBS__WEBHOOK_ALLOW": '["127.0.0.0/8"]',
}  # fmt: skip
SEGMENT = re.compile(r"\] segment +job=(\S+) number=(\d+)")


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`short.wav` of one phrase, and `long.wav`, which takes seconds."""
    found = tmp_path_factory.mktemp("media")
    recording(found / "short.wav", 2, 1)
    recording(found / "long.wav", 130, 2, "pcm_mulaw", 8000)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats(tmp_path_factory.mktemp("nats")) as (only,):
        yield only


@contextlib.contextmanager
def workers(folders: list[Path], server: NatsServer, **more: str) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        running = [stack.enter_context(worker(each, **environ(server, **OPTIONS, **more))) for each in folders]
        for each in running:
            until(lambda each=each: joined(each))
        yield running


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, server: NatsServer) -> Iterator[list[Worker]]:
    with workers([tmp_path_factory.mktemp(each) for each in "ab"], server) as found:
        yield found


@contextlib.contextmanager
def asked(*running: Worker) -> Iterator[list[httpx.Client]]:
    with ExitStack() as stack:
        yield [stack.enter_context(httpx.Client(base_url=each.url, timeout=30)) for each in running]


def shown(by: httpx.Client, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = until(lambda: (answer := by.get(f"/v1/jobs/{job_id}")).status_code == 200 and answer.json())
    return found


def done(running: Worker, job_id: str = "") -> list[int]:
    """Numbers of the stretches that it has recognised."""
    found = SEGMENT.findall(running.log.read_text())
    return [int(number) for job, number in found if job_id in ("", job)]


def text(by: httpx.Client, job_id: str) -> str:
    answer = by.get(f"/v1/jobs/{job_id}/result", params={"format": "json"})
    assert answer.status_code == 200, answer.text
    return json.dumps(answer.json(), sort_keys=True)


def test_every_worker_shows_a_job_its_result_and_that_it_is_erased(pair: list[Worker], media: Path) -> None:
    with asked(*pair) as (a, b):
        job_id = made(upload(a, media / "short.wav", words="false"))
        job = ended(b, job_id)
        assert job["status"] == "completed"
        assert until(lambda: job == a.get(f"/v1/jobs/{job_id}").json(), 5)
        assert text(a, job_id) == text(b, job_id) and json.loads(text(a, job_id))["segments"]
        assert [each["id"] for each in jobs(a)] == [each["id"] for each in jobs(b)]
        assert a.delete(f"/v1/jobs/{job_id}").status_code == 204
        until(lambda: b.get(f"/v1/jobs/{job_id}").status_code == 404, 5)
        assert b.get(f"/v1/jobs/{job_id}/result").status_code == 404
        until(lambda: not any(folder(running) for running in pair if (running.data_dir / "jobs").exists()), 5)


def test_a_job_is_known_everywhere_as_soon_as_it_is_taken(pair: list[Worker], media: Path) -> None:
    with asked(*pair) as (a, b):
        answers = [b.delete(f"/v1/jobs/{made(upload(a, media / 'long.wav'))}") for _ in range(20)]
        assert [answer.status_code for answer in answers] == [200] * 20, "cancelled"
        ids = [answer.json()["id"] for answer in answers]
        assert [a.delete(f"/v1/jobs/{each}").status_code for each in ids] == [204] * 20
        assert [by.get(f"/v1/jobs/{each}").status_code for each in (*ids, "no one's") for by in (a, b)] == [404] * 42


async def test_a_job_that_another_worker_takes_at_once_is_accepted(
    tmp_path: Path, pair: list[Worker], server: NatsServer, media: Path
) -> None:
    """It runs there before the worker that was given it has read NATS's answer."""
    settings = parse({"data_dir": str(tmp_path), "cluster": {"nats": [server.url], "replicas": 1}})
    connection = NatsConnection(settings.cluster, worker="test", on_ready=_nothing)
    sources = Sources.of(settings)
    store = ClusterJobStore(connection, tmp_path, sources, clock=time.time)
    job_id, sound = str(uuid7()), (media / "short.wav").read_bytes()
    job = Job(job_id, "loopback", Source("short.wav", len(sound)), Options(), time.time())
    connection.start()
    await store.start()
    try:
        store.join("test")
        incoming = sources.incoming(job_id)
        await incoming.write(sound)
        await incoming.finish(sync=True)
        incoming.close()
        sources.keep(job)
        adding = asyncio.create_task(store.add(job))
        while not adding.done():
            await asyncio.sleep(0)
            time.sleep(0.02)  # noqa: ASYNC251 - the loop is busy
        await adding
        assert await store.find(job_id)
    finally:
        await store.close()
        await connection.stop()
    with asked(*pair) as (a, b):
        assert (await asyncio.to_thread(ended, a, job_id))["status"] == "completed"
        assert b.delete(f"/v1/jobs/{job_id}").status_code == 204


async def _nothing() -> None:
    pass


async def test_a_question_to_nats_can_be_cancelled_at_any_time(server: NatsServer) -> None:
    """With the client as it is, every third of these is lost."""
    client, pause_s, cancelled = CancellableClient(), random.Random(1), 0
    await client.connect(server.url)
    try:
        bucket = await client.jetstream().create_key_value(bucket="QUESTIONS")
        for number in range(400):
            asking = asyncio.create_task(bucket.put(str(number), b"x"))
            await asyncio.sleep(pause_s.uniform(0, 0.003))
            if asking.cancel():
                cancelled += 1
                await asyncio.wait([asking])
                assert asking.cancelled()
        assert cancelled > 20
    finally:
        await client.close()


async def test_nothing_of_an_erased_job_is_left_in_jetstream(
    pair: list[Worker], server: NatsServer, media: Path
) -> None:
    with asked(*pair) as (a, b):
        job_id = made(upload(a, media / "short.wav", prompt="rhubarb"))
        assert ended(a, job_id)["status"] == "completed"
        client = await nats_client.connect(server.url)
        try:
            js = client.jetstream()
            assert (await js.stream_info("KV_MEDIAWORKER_JOB_SEGMENTS", subjects_filter=">")).state.messages > 0
            assert b.delete(f"/v1/jobs/{job_id}").status_code == 204
            assert (await js.stream_info("KV_MEDIAWORKER_JOB_SEGMENTS")).state.messages == 0
            records, uploads = [
                (await js.stream_info(each)).state for each in ("KV_MEDIAWORKER_JOBS", "OBJ_MEDIAWORKER_JOB_UPLOADS")
            ]
            assert uploads.bytes < 10_000, "the sound is gone"
            for seq in range(records.first_seq, records.last_seq + 1):
                with contextlib.suppress(nats_client.js.errors.NotFoundError):
                    assert b"rhubarb" not in ((await js.get_msg("KV_MEDIAWORKER_JOBS", seq)).data or b"")
        finally:
            await client.close()


def test_workers_share_the_queue_and_each_stretch_is_recognised_once(pair: list[Worker], media: Path) -> None:
    with asked(*pair) as (a, b):
        ids = [made(upload(a, media / "long.wav")) for _ in range(4)]
        assert [ended(b, each)["status"] for each in ids] == ["completed"] * 4
        results = {text(b, each) for each in ids}
        assert len(results) == 1
        for job_id in ids:
            numbers = done(pair[0], job_id) + done(pair[1], job_id)
            assert len(numbers) == len(set(numbers)) > 20
        assert all(any(done(running, job_id) for job_id in ids) for running in pair), "both of them work"
        for job_id in ids:
            assert b.delete(f"/v1/jobs/{job_id}").status_code == 204


def test_a_job_is_cancelled_by_any_worker(pair: list[Worker], media: Path) -> None:
    with asked(*pair) as (a, b):
        first, second = (made(upload(a, media / "long.wav")) for _ in range(2))
        for job_id in (first, second):
            until(lambda job_id=job_id: a.get(f"/v1/jobs/{job_id}").json()["status"] == "running")
        for by in (a, b):  # one of them runs it, the other one does not
            job_id = first if by is a else second
            answer = by.delete(f"/v1/jobs/{job_id}")
            assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        for by in (a, b):
            for job_id in (first, second):
                until(lambda by=by, job_id=job_id: by.get(f"/v1/jobs/{job_id}").json()["status"] == "cancelled", 5)
        until(lambda: all(running.metric("mediaworker_jobs_running") == 0 for running in pair), 5)
        for job_id in (first, second):
            assert b.delete(f"/v1/jobs/{job_id}").status_code == 204


def test_a_file_of_one_machine_is_transcribed_there(tmp_path: Path, server: NatsServer, media: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    name_of = {"CLUSTER__NAME": "paths"}
    with (
        worker(tmp_path / "a", **environ(server, **OPTIONS, **name_of, JOBS__ROOTS=json.dumps([str(media)]))) as one,
        worker(tmp_path / "b", **environ(server, **OPTIONS, **name_of)) as other,
        asked(one, other) as (a, b),
    ):
        until(lambda: joined(one) and joined(other))
        ids = [made(name(a, media / "short.wav")) for _ in range(6)]
        assert [ended(b, job_id)["status"] for job_id in ids] == ["completed"] * 6
        assert not done(other)


def test_a_killed_workers_job_goes_on_elsewhere_and_its_webhook_is_posted_once(
    tmp_path: Path, server: NatsServer, media: Path
) -> None:
    with (
        receiving(200) as receiver,
        workers([_made(tmp_path / each) for each in "ab"], server, CLUSTER__NAME="killed") as running,
        asked(*running) as (a, b),
    ):
        whole = made(upload(b, media / "long.wav"))
        assert ended(b, whole)["status"] == "completed"
        job_id = made(upload(a, media / "long.wav", webhook_url=receiver.url))
        until(lambda: any(len(done(each, job_id)) >= 5 for each in running), 30)
        killed, other = running if done(running[0], job_id) else reversed(running)
        by = a if other is running[0] else b
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        before = len(done(killed, job_id))
        assert ended(by, job_id)["status"] == "completed"
        assert min(done(other, job_id)) in (before, before - 1), "at the first unfinished stretch"
        assert text(by, job_id) == text(by, whole)
        assert other.metric("mediaworker_cluster_jobs_taken_over_total") == 1
        until(lambda: len(receiver.came) == 1, 10)
        (message,) = told(receiver)
        assert (message["type"], message["data"]["id"]) == ("job.completed", job_id)
        killed.start_again()
        until(lambda: alive(killed), 60)
        with asked(killed) as (again,):
            until(lambda: shown(again, job_id)["status"] == "completed", 20)
            assert text(again, job_id) == text(by, job_id)
        assert len(receiver.came) == 1


def test_a_worker_that_stands_still_gives_its_job_up(tmp_path: Path, server: NatsServer, media: Path) -> None:
    with (
        workers([_made(tmp_path / each) for each in "ab"], server, CLUSTER__NAME="stopped") as running,
        asked(*running) as (a, b),
    ):
        job_id = made(upload(a, media / "long.wav"))
        until(lambda: any(len(done(each, job_id)) >= 3 for each in running), 30)
        stopped, other = running if done(running[0], job_id) else reversed(running)
        stopped.process.send_signal(signal.SIGSTOP)
        try:
            assert ended(a if other is running[0] else b, job_id)["status"] == "completed"
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        with asked(stopped) as (back,):
            until(lambda: shown(back, job_id)["status"] == "completed", 20)
            until(lambda: stopped.metric("mediaworker_jobs_running") == 0, 10)


async def test_without_nats_a_job_waits_and_none_is_taken(tmp_path: Path, media: Path) -> None:
    with (
        nats(tmp_path / "nats") as (only,),
        workers([_made(tmp_path / "a")], only) as (running,),
        asked(running) as (a,),
    ):
        job_id = made(upload(a, media / "long.wav"))
        until(lambda: len(done(running, job_id)) >= 3, 30)
        only.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(8)
        assert a.get(f"/v1/jobs/{job_id}").json()["status"] in ("running", "queued")
        only.process.send_signal(signal.SIGCONT)
        assert (await asyncio.to_thread(ended, a, job_id))["status"] == "completed"
        numbers = done(running, job_id)
        assert set(numbers) == set(range(len(set(numbers))))


def test_jobs_from_before_are_brought_along_and_uploads_go_on(tmp_path: Path, server: NatsServer, media: Path) -> None:
    own, other = _made(tmp_path / "a"), _made(tmp_path / "b")
    alone = {each: value for each, value in environ(server, **OPTIONS).items() if not each.startswith("CLUSTER")}
    with worker(own, **alone) as running, asked(running) as (a,):
        over = made(upload(a, media / "short.wav"))
        assert ended(a, over)["status"] == "completed"
        said = text(a, over)
        waits = made(upload(a, media / "long.wav"))
        until(lambda: len(done(running, waits)) >= 3, 30)
    with workers([own, other], server, CLUSTER__NAME="brought") as pair, asked(*pair) as (_, b):
        assert shown(b, over)["status"] == "completed" and text(b, over) == said
        shown(b, waits)
        assert ended(b, waits)["status"] == "completed"
        numbers = done(pair[0], waits) + done(pair[1], waits)  # the log of the first start is there too
        assert len(numbers) == len(set(numbers)), "what was recognised alone is not recognised again"


def _made(path: Path) -> Path:
    path.mkdir()
    return path
