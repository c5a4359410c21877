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
import msgspec
import nats as nats_client
import pytest
from msgspec.structs import replace
from uuid_utils import uuid7

from config.load import parse
from lab.chaos.jobs import recording
from lab.engine.limits import limit, limited
from lab.engine.listener import LISTENER, Limit
from lab.http.receiver import SECRET, receiving, told
from lab.network.nats_servers import NatsServer, nats
from lab.patience import seconds, until
from lab.worker.cluster import environ, joined
from lab.worker.jobs import ended, folder, jobs, made, name, upload
from lab.worker.peers import Worker, alive, worker
from mediaworker.cluster.connection import CancellableClient, NatsConnection
from mediaworker.cluster.jobs import ClusterJobStore
from mediaworker.files.options import Options
from mediaworker.jobs.record import Job, Source

__all__ = ["limit", "limited"]

OPTIONS = {
    **LISTENER, "FILES__PARALLEL_SEGMENTS": "1", "LOG__LEVEL": "debug", "JOBS__PARALLEL": "1",
    "JOBS__WEBHOOK_SECRET": SECRET, "JOBS__WEBHOOK_ALLOW": '["127.0.0.0/8"]',
}  # fmt: skip
SEGMENT = re.compile(r"\] segment +job=(\S+) number=(\d+)")


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`short.wav` of two phrases, and `long.wav` of more than a job is recognised of under a limit."""
    found = tmp_path_factory.mktemp("media")
    recording(found / "short.wav", 2, 1)
    recording(found / "long.wav", 24, 2, "pcm_mulaw", 8000)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats(tmp_path_factory.mktemp("nats")) as (only,):
        yield only


@contextlib.contextmanager
def started(folder: Path, limit: Limit, *servers: NatsServer, **more: str) -> Iterator[Worker]:
    """A worker that has joined the cluster of these servers; without any it is alone."""
    options = {**environ(*servers), **OPTIONS, **more}
    alone = {each: value for each, value in options.items() if servers or not each.startswith("CLUSTER")}
    with worker(folder, limit.environ, **alone) as running:
        until(lambda: not servers or joined(running))
        yield running


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, server: NatsServer, limited: Limit, media: Path
) -> Iterator[list[Worker]]:
    """Of which the first may read the files of `media`."""
    one, other = (tmp_path_factory.mktemp(each) for each in "ab")
    with (
        started(one, limited, server, JOBS__ROOTS=json.dumps([str(media)])) as a,
        started(other, limited, server) as b,
    ):
        yield [a, b]


@contextlib.contextmanager
def asked(*running: Worker) -> Iterator[list[httpx.Client]]:
    with ExitStack() as stack:
        yield [stack.enter_context(httpx.Client(base_url=each.url, timeout=seconds(30))) for each in running]


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
        until(lambda: job == a.get(f"/v1/jobs/{job_id}").json())
        assert text(a, job_id) == text(b, job_id) and json.loads(text(a, job_id))["segments"]
        assert [each["id"] for each in jobs(a)] == [each["id"] for each in jobs(b)]
        assert a.delete(f"/v1/jobs/{job_id}").status_code == 204
        until(lambda: b.get(f"/v1/jobs/{job_id}").status_code == 404)
        assert b.get(f"/v1/jobs/{job_id}/result").status_code == 404
        until(lambda: not any(folder(running) for running in pair if (running.data_dir / "jobs").exists()))


def test_a_job_is_known_everywhere_as_soon_as_it_is_taken(pair: list[Worker], media: Path, limit: Limit) -> None:
    limit.set(0)  # none of them is over before it is cancelled
    with asked(*pair) as (a, b):
        answers = [b.delete(f"/v1/jobs/{made(upload(a, media / 'long.wav'))}") for _ in range(8)]
        assert [answer.status_code for answer in answers] == [200] * 8, "cancelled"
        ids = [answer.json()["id"] for answer in answers]
        assert [a.delete(f"/v1/jobs/{each}").status_code for each in ids] == [204] * 8
        assert [by.get(f"/v1/jobs/{each}").status_code for each in (*ids, "no one's") for by in (a, b)] == [404] * 18


async def test_a_job_that_another_worker_takes_at_once_is_accepted(
    tmp_path: Path, pair: list[Worker], server: NatsServer, media: Path
) -> None:
    """It runs there before the worker that was given it has read NATS's answer."""
    settings = parse({"data_dir": str(tmp_path), "cluster": {"nats": [server.url], "replicas": 1}})
    connection = NatsConnection(settings.cluster, worker="test", on_ready=_nothing)
    store = ClusterJobStore(connection, settings)
    sources = store.sources
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


async def test_a_job_goes_on_when_two_workers_have_written_that_they_run_it(
    pair: list[Worker], server: NatsServer, media: Path, limit: Limit
) -> None:
    """Three servers of NATS 2.9 let two workers that begin a job at once both write on top of the same record
    (nats-server issue 4320). Each may read that the other has the job before it hears that it has it itself."""
    limit.set(0)
    client = await nats_client.connect(server.url)
    try:
        bucket = await client.jetstream().key_value("MEDIAWORKER_JOBS")
        with asked(*pair) as (a, b):
            records = []
            for _ in pair:
                job_id = made(await asyncio.to_thread(upload, a, media / "short.wav"))
                await asyncio.to_thread(until, lambda by=a, job_id=job_id: shown(by, job_id)["status"] == "running")
                records.append(msgspec.json.decode((await bucket.get(job_id)).value or b"", type=Job))
            workers = {record.worker for record in records}
            assert len(workers) == 2
            for record in records:
                for runner in sorted(workers, key=lambda each, record=record: each == record.worker):
                    await bucket.put(record.id, msgspec.json.encode(replace(record, worker=runner)))
            limit.lift()
            for job in await asyncio.to_thread(jobs, b):
                assert (await asyncio.to_thread(ended, b, job["id"]))["status"] == "completed"
                assert a.delete(f"/v1/jobs/{job['id']}").status_code == 204
    finally:
        await client.close()


def left_out(running: list[Worker]) -> float:
    return sum(each.metric("mediaworker_cluster_unreadable_jobs_total") for each in running)


async def test_what_strangers_write_into_the_bucket_costs_nothing(
    pair: list[Worker], server: NatsServer, media: Path, tmp_path: Path
) -> None:
    """An id is the name of a file, and a worker's name a key: neither leads anywhere, and the rest goes on."""
    precious = tmp_path / "precious.txt"
    precious.write_text("not a job's")
    with asked(*pair) as (a, b):
        job_id = made(await asyncio.to_thread(upload, a, media / "short.wav"))
        assert (await asyncio.to_thread(ended, a, job_id))["status"] == "completed"
        before = left_out(pair)
        client = await nats_client.connect(server.url)
        try:
            js = client.jetstream()
            entry = await (await js.key_value("MEDIAWORKER_JOBS")).get(job_id)
            record = msgspec.json.decode(entry.value or b"", type=Job)
            other, path = str(uuid7()), str(precious)
            evil = {
                other: replace(record, id=path, state="completed"),
                str(uuid7()): replace(record, id="../../precious.txt", state="queued"),
                "no-uuid": replace(record, id="no-uuid", state="queued"),
                path: replace(record, id=path, state="completed"),
                str(uuid7()): None,
            }
            for key, each in evil.items():
                await js.publish(f"$KV.MEDIAWORKER_JOBS.{key}", b"{" if each is None else msgspec.json.encode(each))
            await js.publish(f"$KV.MEDIAWORKER_JOBS.{path}", b"", headers={"KV-Operation": "PURGE"})
            # Run by a worker whose name is no key, which counts as gone: its job is taken over, and ends.
            stray = str(uuid7())
            gone = replace(record, id=stray, state="running", worker="a b/../c", chunks=0, done_s=0.0)
            await js.publish(f"$KV.MEDIAWORKER_JOBS.{stray}", msgspec.json.encode(gone))
        finally:
            await client.close()
        count = len(evil) + 1
        await asyncio.to_thread(until, lambda: left_out(pair) == before + 2 * count)
        job = await asyncio.to_thread(ended, b, stray)
        assert (job["status"], job["error"]["code"]) == ("failed", "source"), "its upload is nowhere"
        assert precious.read_text() == "not a job's"
        assert [each["id"] for each in await asyncio.to_thread(jobs, a)] == [stray, job_id]
        for each in (stray, job_id):
            assert a.delete(f"/v1/jobs/{each}").status_code == 204


async def test_a_question_to_nats_can_be_cancelled_at_any_time(server: NatsServer) -> None:
    """With the client as it is, every third of these is lost."""
    client, pause_s, cancelled = CancellableClient(), random.Random(1), 0
    await client.connect(server.url)
    try:
        bucket = await client.jetstream().create_key_value(bucket="QUESTIONS")
        for number in range(200):
            asking = asyncio.create_task(bucket.put(str(number), b"x"))
            await asyncio.sleep(pause_s.uniform(0, 0.003))  # cancelled after any time
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


def test_workers_share_the_queue_and_each_stretch_is_recognised_once(
    pair: list[Worker], media: Path, limit: Limit
) -> None:
    limit.set(1)
    with asked(*pair) as (a, b):
        ids = [made(upload(a, media / "long.wav")) for _ in range(4)]
        until(lambda: all(any(done(running, job_id) for job_id in ids) for running in pair), what="both of them work")
        limit.lift()
        assert [ended(b, each)["status"] for each in ids] == ["completed"] * 4
        results = {text(b, each) for each in ids}
        assert len(results) == 1
        for job_id in ids:
            numbers = done(pair[0], job_id) + done(pair[1], job_id)
            assert len(numbers) == len(set(numbers)) > 10
        for job_id in ids:
            assert b.delete(f"/v1/jobs/{job_id}").status_code == 204


def test_a_job_is_cancelled_by_any_worker(pair: list[Worker], media: Path, limit: Limit) -> None:
    limit.set(1)
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
                until(lambda by=by, job_id=job_id: by.get(f"/v1/jobs/{job_id}").json()["status"] == "cancelled")
        until(lambda: all(running.metric("mediaworker_jobs_running") == 0 for running in pair))
        for job_id in (first, second):
            assert b.delete(f"/v1/jobs/{job_id}").status_code == 204


def test_a_file_of_one_machine_is_transcribed_there(pair: list[Worker], media: Path) -> None:
    with asked(*pair) as (a, b):
        ids = [made(name(a, media / "short.wav")) for _ in range(4)]
        assert [ended(b, job_id)["status"] for job_id in ids] == ["completed"] * 4
        assert not any(done(pair[1], job_id) for job_id in ids)


def test_a_worker_that_stands_still_gives_its_job_up(pair: list[Worker], media: Path, limit: Limit) -> None:
    with asked(*pair) as clients:
        limit.set(3)
        job_id = made(upload(clients[0], media / "long.wav"))
        stopped, other = at_work(pair, job_id, 3)
        stopped.process.send_signal(signal.SIGSTOP)
        limit.lift()
        try:
            assert ended(clients[pair.index(other)], job_id)["status"] == "completed"
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        until(lambda: shown(clients[pair.index(stopped)], job_id)["status"] == "completed")
        until(lambda: stopped.metric("mediaworker_jobs_running") == 0)


def at_work(pair: list[Worker], job_id: str, stretches: int) -> tuple[Worker, Worker]:
    """The worker that has recognised so many of the job, and the other."""
    until(lambda: any(len(done(each, job_id)) >= stretches for each in pair))
    return (pair[0], pair[1]) if done(pair[0], job_id) else (pair[1], pair[0])


def test_a_killed_workers_job_goes_on_elsewhere_and_its_webhook_is_posted_once(
    pair: list[Worker], media: Path, limit: Limit
) -> None:
    with receiving(200) as receiver, asked(*pair) as clients:
        whole = made(upload(clients[0], media / "long.wav"))
        assert ended(clients[0], whole)["status"] == "completed"
        limit.set(5)
        job_id = made(upload(clients[0], media / "long.wav", webhook_url=receiver.url))
        killed, other = at_work(pair, job_id, 5)
        by, taken_over = clients[pair.index(other)], other.metric("mediaworker_cluster_jobs_taken_over_total")
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        limit.lift()
        assert ended(by, job_id)["status"] == "completed"
        assert min(done(other, job_id)) == 5, "at the first unfinished stretch"
        assert text(by, job_id) == text(by, whole)
        assert other.metric("mediaworker_cluster_jobs_taken_over_total") == taken_over + 1
        until(lambda: receiver.came)
        (message,) = told(receiver)
        assert (message["type"], message["data"]["id"]) == ("job.completed", job_id)
        killed.start_again()
        until(lambda: alive(killed), 60)
        again = clients[pair.index(killed)]
        until(lambda: shown(again, job_id)["status"] == "completed")
        assert text(again, job_id) == text(by, job_id)
        assert len(receiver.came) == 1


def test_without_nats_a_job_waits_and_none_is_taken(
    pair: list[Worker], server: NatsServer, media: Path, limit: Limit
) -> None:
    with asked(*pair) as clients:
        limit.set(3)
        job_id = made(upload(clients[0], media / "long.wav"))
        running, _ = at_work(pair, job_id, 3)
        a = clients[pair.index(running)]
        server.process.send_signal(signal.SIGSTOP)
        try:
            limit.lift()
            until(lambda: "NATS was lost" in str(running.get("/readyz")))
            assert upload(a, media / "short.wav").status_code == 503
            assert a.get(f"/v1/jobs/{job_id}").json()["status"] in ("running", "queued")
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert ended(a, job_id)["status"] == "completed"
        numbers = {number for each in pair for number in done(each, job_id)}
        assert numbers == set(range(len(numbers)))


def test_jobs_from_before_are_brought_along_and_uploads_go_on(
    tmp_path: Path, pair: list[Worker], server: NatsServer, media: Path, limit: Limit
) -> None:
    """The log of the worker alone is that of the worker that has joined the cluster of the others, too."""
    with started(tmp_path, limit) as running, asked(running) as (a,):
        over = made(upload(a, media / "short.wav"))
        assert ended(a, over)["status"] == "completed"
        said = text(a, over)
        limit.set(3)
        waits = made(upload(a, media / "long.wav"))
        until(lambda: len(done(running, waits)) == 3)
    limit.lift()
    with started(tmp_path, limit, server) as running, asked(pair[1]) as (b,):
        assert shown(b, over)["status"] == "completed" and text(b, over) == said
        shown(b, waits)
        assert ended(b, waits)["status"] == "completed"
        numbers = [number for each in (running, *pair) for number in done(each, waits)]
        assert len(numbers) == len(set(numbers)), "what was recognised alone is not recognised again"
