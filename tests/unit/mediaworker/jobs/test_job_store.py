"""The store of jobs on a bad disk: damaged records, uploads that it does not know, a file lost under it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from config import Settings
from config.settings import Files
from mediaworker.files.options import Options
from mediaworker.files.segments import FileSegment
from mediaworker.jobs.database import JobDatabase
from mediaworker.jobs.notifier import JobNotifier
from mediaworker.jobs.record import Job, Source, Webhook, public
from mediaworker.jobs.store import FILE, UNKNOWN_S, JobStore
from mediaworker.storage.database_thread import StoreError, StoreUnusable
from mediaworker.storage.sqlite import ASIDE
from mediaworker.webhooks.outbox import Attempt

DATA = b"RIFF and so on"
NOW = 1_800_000_000.0


@contextlib.asynccontextmanager
async def opened(folder: Path, clock: Callable[[], float] = lambda: NOW) -> AsyncIterator[JobStore]:
    store = JobStore(Settings(data_dir=str(folder), files=Files(min_free_mb=0)), clock=clock)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def a_job(name: str) -> Job:
    return Job(name, "ann", Source("a.wav", len(DATA)), Options(), created_s=NOW)


async def taken_in(store: JobStore, job: Job) -> None:
    """As the route does."""
    incoming = store.sources.incoming(job.id)
    await incoming.write(DATA)
    await incoming.finish(sync=True)
    store.sources.keep(job)
    incoming.close()


def segment(number: int) -> FileSegment:
    return FileSegment(
        index=number, channel=0, start_ms=number * 1000, end_ms=number * 1000 + 900, text=f"word {number}"
    )


def spoil(folder: Path, text: str) -> None:
    """As a disk does: no index hears of it."""
    with contextlib.closing(sqlite3.connect(folder / FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = (folder / FILE).read_bytes()
    assert data.count(text.encode()) == 1
    (folder / FILE).write_bytes(data.replace(text.encode(), b"\xff" + text.encode()[1:]))


async def test_an_upload_that_the_store_has_lost_is_a_job_again(tmp_path: Path) -> None:
    """And goes on with what was recognised of it; one whose row is damaged too."""
    async with opened(tmp_path) as store:
        for name in ("lost", "damaged", "whole"):
            await taken_in(store, a_job(name))
            await store.put(a_job(name), segment(0))
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("DELETE FROM jobs WHERE id = 'lost'")
    spoil(tmp_path, '{"id":"damaged"')
    async with opened(tmp_path) as store:
        assert sorted(store.open) == ["damaged", "lost", "whole"]
        assert store.open["lost"].chunks == store.open["damaged"].chunks == 1
        assert [found.text for found in await store.segments("lost")] == ["word 0"]
        assert store.warning is None, "only the record was damaged"
        for name in ("damaged", "lost", "whole"):
            await store.end(store.open[name], "completed")
    async with opened(tmp_path) as store:
        assert store.open == {} and not os.listdir(tmp_path / "jobs") and not os.listdir(tmp_path / "job_requests")


async def test_an_upload_that_nobody_knows_is_kept_for_a_day(tmp_path: Path) -> None:
    now = [NOW]
    async with opened(tmp_path, lambda: now[0]) as store:
        await taken_in(store, a_job("known"))
        await store.put(a_job("known"))
        await taken_in(store, a_job("forgotten"))
        await taken_in(store, a_job("broken"))
    (tmp_path / "job_requests" / "forgotten").unlink()
    (tmp_path / "job_requests" / "broken").write_bytes(b"{nothing")
    (tmp_path / "jobs" / "half.part").write_bytes(b"half")
    for path in (tmp_path / "jobs").iterdir():
        os.utime(path, (NOW, NOW))
    async with opened(tmp_path, lambda: now[0]) as store:
        assert sorted(os.listdir(tmp_path / "jobs")) == ["broken", "forgotten", "known"]
        now[0] += UNKNOWN_S - 10
        assert await store.sweep_uploads(sure=True) == 2
        # Somebody has brought the row back.
        await store.put(a_job("forgotten"))
        old = tmp_path / f"{FILE}{ASIDE}2026-01-01T00-00-00Z"
        old.write_bytes(b"what somebody said")
        for age_s in (3000, 4000):
            os.utime(old, (now[0] - age_s, now[0] - age_s))
            await store.sweep_set_aside(3600)
            assert (old.name in os.listdir(tmp_path)) == (age_s < 3600)
        now[0] += 20
        assert await store.sweep_uploads() == 1, "the clock may be wrong"
        assert await store.sweep_uploads(sure=True) == 0
        assert sorted(os.listdir(tmp_path / "jobs")) == ["forgotten", "known"]


async def test_a_damaged_stretch_is_recognised_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await taken_in(store, a_job("one"))
        for number in range(3):
            await store.put(a_job("one"), segment(number))
    spoil(tmp_path, '{"index":1')
    async with opened(tmp_path) as store:
        assert [found.index for found in await store.segments("one")] == [0, 2]
        assert store.damaged_records == 1
        await store.put(store.open["one"], segment(1))
        assert [found.index for found in await store.segments("one")] == [0, 1, 2]


@pytest.mark.parametrize("suffixes", [("", "-wal", "-shm"), ("-wal",)])
async def test_a_file_lost_under_the_book_is_written_anew_with_the_open_jobs(
    tmp_path: Path, suffixes: tuple[str, ...]
) -> None:
    async with opened(tmp_path) as store:
        for name in ("ended", "open"):
            await taken_in(store, a_job(name))
            await store.put(a_job(name), segment(0))
        await store.end(store.open["ended"], "completed")
        for suffix in suffixes:
            os.unlink(f"{tmp_path / FILE}{suffix}")
        with pytest.raises(StoreUnusable, match="deleted") as lost:
            await store.put(store.open["open"], segment(1))
        assert await store.renew(lost.value.error) == set()
        await store.put(store.open["open"], segment(1))
        assert store.renewed["deleted"] == 1 and store.trouble is None and store.warning is not None
    assert not [name for name in os.listdir(tmp_path) if name.startswith(FILE + ASIDE) and name.endswith("Z")]
    async with opened(tmp_path) as store:
        assert [found.index for found in await store.segments("open")] == [0, 1]
        ended = await store.read(lambda database: database.job("ended"))
        assert (ended is None) == ("" in suffixes), "with the log alone nothing is lost"


async def test_a_failure_that_cannot_be_written_down_is_one_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows and counts at once, and is written down when that is possible; its webhook is not owed twice."""
    webhook = Webhook("https://x.example/told")
    jobs = [a_job("plain"), replace(a_job("told"), webhook=webhook), replace(a_job("waits"), webhook=webhook)]
    async with opened(tmp_path) as store:
        for job in jobs:
            await taken_in(store, job)
            await store.put(job)
        notifier = JobNotifier(store, Settings())
        put = JobDatabase.put
        monkeypatch.setattr(JobDatabase, "put", _read_only)
        for job in jobs:
            store.end_unwritten(replace(job, code="gave_up", error="no engine"), StoreError("read-only"))
        for job in jobs:
            found = await store.find(job.id)
            assert found is not None and public(found)["status"] == "failed" and found.ended_s == NOW
            assert public(found)["error"] == {"code": "gave_up", "message": "no engine"}
        assert store.ended["failed"] == 3 and store.trouble == "read-only"
        notifier.collect()
        ready = {message.id: message for message in notifier.outbox.lanes.ready(NOW, 9)}
        assert set(ready) == {"told", "waits"} and json.loads(ready["told"].body())["type"] == "job.failed"
        await notifier._on_attempt(ready["told"], Attempt("delivered"))
        notifier.outbox.lanes.done(ready["told"], NOW)
        notifier.collect()
        assert set(store.open) == {"plain", "told", "waits"}, "its record on the disk is older"
        assert "told" not in notifier.outbox.lanes
        with pytest.raises(StoreError):
            await store.write_ended()
        monkeypatch.setattr(JobDatabase, "put", put)
        for _ in range(2):
            await store.write_ended()
            assert set(store.open) == {"waits"} and store.trouble is None
        for job in jobs:
            found = await store.read(lambda database, name=job.id: database.job(name))
            assert found is not None and (found.state, found.error) == ("failed", "no engine")
        assert store.sources.uploads() == set()
        await notifier.outbox.close()


def _read_only(*arguments: object, **named: object) -> None:
    raise sqlite3.OperationalError("disk I/O error")


def pages_lost(folder: Path) -> None:
    """Overwritten in place, as a disk does: the next statement that needs a page of them meets it."""
    with (folder / FILE).open("r+b") as file:
        file.write(b"\x5a" * (folder / FILE).stat().st_size)


async def test_a_file_that_a_change_finds_damaged_is_written_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await taken_in(store, a_job("open"))
        await store.put(a_job("open"))
        await store.write(lambda database: database.checkpoint_all())
        await store.write(lambda database: database.execute("PRAGMA cache_size = 0").fetchall())
        pages_lost(tmp_path)
        with pytest.raises(StoreUnusable, match="malformed|not a database"):
            await store.put(store.open["open"], segment(0))
        with pytest.raises(StoreUnusable) as lost:
            await store.check()
        assert await store.renew(lost.value.error) == {"open"}
        await store.check()
        store.begin_anew({"open"})
        await store.put(store.open["open"], segment(0))
        assert store.renewed["damaged"] == 1
    async with opened(tmp_path) as store:
        assert [found.index for found in await store.segments("open")] == [0]


async def test_a_file_that_a_question_finds_damaged_is_kept(tmp_path: Path) -> None:
    """What is damaged in the past keeps nobody from writing down what happens now."""
    async with opened(tmp_path) as store:
        await store.put(a_job("open"))
        await store.write(lambda database: database.checkpoint_all())
        await store.write(lambda database: database.execute("PRAGMA cache_size = 0").fetchall())
        pages_lost(tmp_path)
        with pytest.raises(StoreUnusable, match="malformed|not a database"):
            await store.find("ended")
        await store.check()
        assert store.damaged_records == 1 and not any(store.renewed.values())
