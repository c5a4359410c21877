"""Damaged, deleted and replaced store files: the worker starts, goes on, says so, and loses no more than it must."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from config.load import parse
from config.process.tasks import end_tasks
from config.settings import Retention as RetentionSettings
from lab.events.samples import ended, final, kinds, running_hub, speech, started, take, until
from lab.house import ROOT
from lab.patience import seconds
from mediaworker.events import stored_events
from mediaworker.events import tables as store_file
from mediaworker.events.database import Database
from mediaworker.events.frame import decode
from mediaworker.events.hub import EventHub
from mediaworker.events.retention import RetentionTask
from mediaworker.events.schema import CallEnded, Event, TranscriptFinal
from mediaworker.events.store import FILE, EventStore, StoreError
from mediaworker.events.subscription import ResumeError, SubscriptionClosed
from mediaworker.jobs import database as job_file
from mediaworker.jobs.database import JobDatabase
from mediaworker.storage.sqlite import ASIDE


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of some size, closed properly but for a call that is open in it."""
    folder = tmp_path_factory.mktemp("sample")
    asyncio.run(_fill(folder))
    return folder / FILE


async def _fill(folder: Path) -> None:
    async with running_hub(folder) as hub:
        for number in range(40):
            a_call(hub, f"c{number:02}", 6)
        hub.publish("open", 0, started())
        hub.publish("open", 100, final("open/1", "the first words"))
        hub.publish("open", 300, speech("open/2"))
        await hub.flush()
        await hub.store.write(lambda database: database.checkpoint_all())


def a_call(hub: EventHub, name: str, finals: int) -> None:
    hub.publish(name, 0, started())
    for number in range(finals):
        hub.publish(name, 0, speech(f"{name}/{number}"))
        hub.publish(name, 0, final(f"{name}/{number}", f"words number {number} of this call"))
    hub.publish(name, 0, ended())


async def replayed(hub: EventHub, after: str | None = None) -> list[Event]:
    """Everything in the store, as a subscriber gets it."""
    store_id = hub.cursor.store_id
    subscription = hub.subscribe(after=after or f"{store_id}:0")
    found = []
    with contextlib.suppress(SubscriptionClosed, StoreError):
        while True:
            coming = asyncio.ensure_future(anext(subscription))
            while not coming.done() and not (subscription.live and not subscription.waiting):  # noqa: ASYNC110
                await asyncio.sleep(0)  # what is waited for tells nobody
            if not coming.done():
                coming.cancel()
                break
            found.append(decode(coming.result()))
    subscription.close()
    return found[1:]


def aside(folder: Path, name: str = FILE) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(name + ASIDE))


# -- at the start ------------------------------------------------------------------------------------------------------


def header(path: Path) -> None:
    path.write_bytes(b"this is no database" * 40)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def a_root_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[2 * 4096 : 6 * 4096] = random.Random(1).randbytes(4 * 4096)
    path.write_bytes(data)


def a_directory(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def no_tables(path: Path) -> None:
    """As a version number of 0 in the header makes it look, the other way round."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 0")


@pytest.mark.parametrize("damage", [header, half, empty, a_root_page, a_directory, no_tables])
async def test_a_damaged_file_is_set_aside_and_a_new_one_begun(
    tmp_path: Path, sample: Path, damage: Callable[[Path], None]
) -> None:
    shutil.copy(sample, tmp_path / FILE)
    with contextlib.closing(Database(sample, read_only=True)) as before:
        old_id = before.head().store_id
    damage(tmp_path / FILE)
    async with running_hub(tmp_path) as hub:
        assert hub.cursor.store_id != old_id and hub.trouble is None
        with pytest.raises(ResumeError):
            hub.subscribe(after=f"{old_id}:1")
        (name,) = aside(tmp_path)
        assert hub.store.renewed["damaged"] == 1 and hub.store.set_aside == (name,)
        assert any(name in warning for warning in hub.warnings)
        a_call(hub, "new", 2)
        await hub.flush()
        assert len(await replayed(hub)) == 6
    async with running_hub(tmp_path) as hub:
        assert hub.store.renewed["damaged"] == 0 and aside(tmp_path) == [name]
        assert any(name in warning for warning in hub.warnings), "until somebody has taken it away"
        assert len(await replayed(hub)) == 6


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
@pytest.mark.parametrize("what", ["garbage", "directory"])
async def test_a_log_or_an_index_of_garbage_costs_at_most_what_was_in_it(
    tmp_path: Path, sample: Path, suffix: str, what: str
) -> None:
    shutil.copy(sample, tmp_path / FILE)
    beside = tmp_path / f"{FILE}{suffix}"
    if what == "garbage":
        beside.write_bytes(random.Random(2).randbytes(100_000))
    else:
        beside.mkdir()
    async with running_hub(tmp_path) as hub:
        if what == "garbage":
            record = await hub.read(lambda database: database.call("open"))
            assert record is not None and record.reason == "worker_restart"
        a_call(hub, "new", 1)
        await hub.flush()
        assert hub.trouble is None


async def test_whatever_bit_is_wrong_the_store_opens(
    tmp_path: Path, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit in each byte of the header, and anywhere; then everything is read, and calls are written."""
    monkeypatch.setattr(stored_events, "CHECK_S", 0.02)
    monkeypatch.setattr("mediaworker.events.event_log.RETRY_S", 0.02)
    chance, whole = random.Random(16), await asyncio.to_thread(sample.read_bytes)
    places = [*range(16, 100), *(chance.randrange(100, len(whole)) for _ in range(40))]
    outcomes = {"refused": 0, "anew": 0, "same": 0}
    for number, place in enumerate(places):
        folder = tmp_path / str(number)
        folder.mkdir()
        data = bytearray(whole)
        data[place] ^= 1 << chance.randrange(8)
        (folder / FILE).write_bytes(data)
        try:
            async with running_hub(folder) as hub:
                a_call(hub, "new", 1)
                await hub.flush()
                for read in (lambda database: database.page(0, 2**62, -1), lambda database: database.calls(100)):
                    with contextlib.suppress(StoreError):
                        await hub.read(read)
                await until(lambda hub=hub: hub.trouble is None)
                outcomes["anew" if hub.store.renewed["damaged"] else "same"] += 1
        except StoreError as error:
            assert "newer" in str(error) and 60 <= place < 64, (place, error)
            outcomes["refused"] += 1
        shutil.rmtree(folder)
    assert outcomes["anew"] > 10 and outcomes["same"] > 40 and outcomes["refused"] <= 4, outcomes


def test_a_file_that_may_not_be_read_is_said_so_and_left_alone(sample: Path) -> None:
    program = (
        "import asyncio, os, sys\nfrom mediaworker.events.store import EventStore, StoreError\n"
        "if os.getuid() == 0:\n    os.setgid(65534); os.setuid(65534)\n"
        "try:\n    asyncio.run(EventStore(sys.argv[1]).start())\nexcept StoreError as error:\n    print(error)\n"
    )
    # Not in pytest's folder, into which nobody but its owner may look.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(sample, folder / FILE)
        (folder / FILE).chmod(0o000)
        folder.chmod(0o777)
        command = [sys.executable, "-c", program, name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds(30))
        assert f"{FILE} cannot be read and written by the user that runs the worker" in done.stdout, done
        assert aside(folder) == []


# -- one record --------------------------------------------------------------------------------------------------------


def spoil(path: Path, table: str, key: str, value: object, column: str) -> None:
    """As a disk does: the bytes change, and no index hears of it."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (text,) = connection.execute(f"SELECT {column} FROM {table} WHERE {key} = ?", (value,)).fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = path.read_bytes()
    raw = text.encode()
    assert data.count(raw) == 1, "short enough to be in one piece"
    path.write_bytes(data.replace(raw, b"\xff" + raw[1:]))


async def test_a_damaged_record_of_an_open_call_is_made_again_of_its_events(tmp_path: Path, sample: Path) -> None:
    shutil.copy(sample, tmp_path / FILE)
    spoil(tmp_path / FILE, "calls", "call_id", "open", "record")
    async with running_hub(tmp_path) as hub:
        assert hub.trouble is None and hub.store.damaged_records and hub.store.renewed["damaged"] == 0
        events = [event for event in await replayed(hub) if event.call_id == "open"]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert isinstance(events[-1].body, CallEnded) and events[-1].body.reason == "worker_restart"
        finals = [event.body.utterance_id for event in events if isinstance(event.body, TranscriptFinal)]
        assert finals == ["open/1", "open/2"]
    async with running_hub(tmp_path) as hub:
        assert (await hub.read(lambda database: database.call("open"))).state == "ended"
        assert hub.store.damaged_records == 0


async def test_a_damaged_record_of_an_ended_call_is_shown_and_can_be_erased(tmp_path: Path, sample: Path) -> None:
    shutil.copy(sample, tmp_path / FILE)
    for call_id in ("c00", "c01"):
        spoil(tmp_path / FILE, "calls", "call_id", call_id, "record")
    async with running_hub(tmp_path) as hub:
        listed = await hub.read(lambda database: database.calls(100))
        assert len(listed) == 41 and {record.state for record in listed} == {"ended"}
        renamed = await hub.ended_calls.rename("c01", {"inbound": "Ann"})
        assert renamed is not None and renamed.legs[0].name == "Ann"
        await hub.ended_calls.erase("c00")
        assert await hub.read(lambda database: database.call("c00")) is None
        (tmp_path / f"{FILE}{ASIDE}2026-01-01T00-00-00Z").write_bytes(b"what somebody said")
        (tmp_path / f"{FILE}{ASIDE}2026-01-01T00-00-00Z-wal").write_bytes(b"and what followed")
        now = [time.time()]
        sweep = RetentionTask(hub, hub_settings(max_age_days=1), clock=lambda: now[0], steady=lambda: now[0])
        now[0] += 2 * 86400
        assert await sweep.sweep() == 40, "what is damaged is in nobody's way"
        assert await replayed(hub) == [] and aside(tmp_path) == []


def hub_settings(**limits: float) -> RetentionSettings:
    return parse({"retention": {"max_bytes": 0, **limits}}).retention


async def test_a_damaged_event_is_passed_over(tmp_path: Path, sample: Path) -> None:
    shutil.copy(sample, tmp_path / FILE)
    with contextlib.closing(sqlite3.connect(sample)) as connection:
        (row,) = connection.execute("SELECT id FROM events WHERE call_id = 'c07' AND seq = 3").fetchone()
    spoil(tmp_path / FILE, "events", "id", row, "json")
    async with running_hub(tmp_path) as hub:
        found = [event.seq for event in await replayed(hub) if event.call_id == "c07"]
        assert found == [1, 2, *range(4, 15)]
        assert hub.store.damaged_records == 1
        frames = await hub.read(lambda database: database.frames("c07", frozenset({"transcript.final"})))
        assert len(frames) == 5


INDEX_DAMAGE = {
    "its pages": "UPDATE words_data SET block = X'0102030405' WHERE id >= 10",
    "its structure": "UPDATE words_data SET block = X'DEADBEEF' WHERE id = 10",
    "its version": "UPDATE words_config SET v = 99",
    "a part is missing": "DROP TABLE words_docsize",
    "an event that was in it": "",
}


@pytest.mark.parametrize("how", INDEX_DAMAGE)
async def test_a_damaged_search_index_is_made_again(tmp_path: Path, sample: Path, how: str) -> None:
    shutil.copy(sample, tmp_path / FILE)
    if statement := INDEX_DAMAGE[how]:
        with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
            connection.execute(statement)
    else:
        with contextlib.closing(sqlite3.connect(sample)) as connection:
            (row,) = connection.execute("SELECT id FROM events WHERE call_id = 'c07' AND seq = 3").fetchone()
        spoil(tmp_path / FILE, "events", "id", row, "json")
    async with running_hub(tmp_path) as hub:
        a_call(hub, "new", 1)
        await hub.flush()
        await hub.ended_calls.erase("c07")
        assert hub.trouble is None and not any(hub.store.renewed.values())
        found, _ = await hub.read(lambda database: database.search("first words", 100))
        assert [record.call_id for record in found] == ["open"]
        found, _ = await hub.read(lambda database: database.search("words number", 100))
        assert len(found) == 40, "c00 to c39 without c07, and the new one"
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# -- under a running worker --------------------------------------------------------------------------------------------


def delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()


def delete_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"something else" * 1000)
    os.replace(other, path)


def overwrite(path: Path) -> None:
    """In place: the pages that the next commit needs are gone."""
    with path.open("r+b") as file:
        file.write(b"\x5a" * path.stat().st_size)


LOST = {delete: "deleted", delete_the_folder: "deleted", replace: "replaced", empty: "damaged", overwrite: "damaged"}


@pytest.mark.parametrize("lose", LOST)
async def test_a_store_lost_under_a_running_worker_is_written_anew_and_calls_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(stored_events, "CHECK_S", 0.05)
    monkeypatch.setattr("mediaworker.events.event_log.RETRY_S", 0.05)
    folder = tmp_path / "data"
    async with running_hub(folder) as hub:
        follower = hub.subscribe()
        a_call(hub, "old", 3)
        hub.publish("live", 0, started())
        hub.publish("live", 10, final("live/1", "before"))
        await hub.flush()
        seen = (await take(follower, 11))[1:]
        if lose in (empty, overwrite):
            await hub.store.write(lambda database: database.checkpoint_all())
            await hub.store.write(lambda database: database.execute("PRAGMA cache_size = 0"))
        lose(folder / FILE)
        if lose is overwrite:  # nobody can see it before the next commit meets it
            for number in range(4):
                hub.publish(f"met/{number}", 0, started())
                hub.publish(f"met/{number}", 0, ended())
                await hub.flush()
        await until(lambda: hub.store.renewed[LOST[lose]] == 1)
        await until(lambda: hub.trouble is None)
        assert hub.warnings
        hub.publish("live", 20, final("live/2", "after"))
        await hub.flush()
        assert hub.trouble is None and hub.event_log.backlog == 0
        # Who has seen everything goes on; who has not is told that there is a gap.
        with pytest.raises(ResumeError):
            await anext(hub.subscribe(after=seen[0].cursor))
        last = seen[-1].cursor if lose is not overwrite else str(hub.cursor)
        resumed = hub.subscribe(after=last)
        assert "hello" in kinds(await take(resumed, 1))
        if lose is not overwrite:
            (event,) = await take(resumed, 1)
            assert isinstance(event.body, TranscriptFinal) and event.body.text == "after"
            live = [event for event in await replayed(hub) if event.call_id == "live"]
            texts = [event.body.text for event in live if isinstance(event.body, TranscriptFinal)]
            assert texts[-1:] == ["after"]
            if lose in (delete, delete_the_folder, replace):
                assert texts == ["before", "after"], "the call's events were carried over"
        first = hub.cursor.store_id
    async with running_hub(folder) as hub:
        assert hub.cursor.store_id == first
        record = await hub.read(lambda database: database.call("live"))
        assert record is not None and record.reason == "worker_restart"


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
async def test_a_lost_log_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(stored_events, "CHECK_S", 0.05)
    async with running_hub(tmp_path) as hub:
        a_call(hub, "old", 3)
        await hub.flush()
        before = await replayed(hub)
        (tmp_path / f"{FILE}{suffix}").unlink()
        await until(lambda: hub.store.renewed["deleted"] == 1)
        a_call(hub, "new", 3)
        await hub.flush()
        assert (await replayed(hub, before[0].cursor))[: len(before) - 1] == before[1:]
        assert aside(tmp_path) == []
        # A kill now: what is read is what is on the disk.
        shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy", "lock"))
    async with running_hub(tmp_path / "copy") as hub:
        assert len([event for event in await replayed(hub) if event.call_id]) == 16


async def test_no_new_store_is_begun_where_another_worker_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_events, "CHECK_S", 0.05)
    monkeypatch.setattr("mediaworker.events.event_log.RETRY_S", 0.05)
    folder = tmp_path / "data"
    async with running_hub(folder) as hub:
        hub.publish("live", 0, started())
        await hub.flush()
        await end_tasks(hub._watch_task)  # which would begin a new one before the other worker does
        shutil.rmtree(folder)
        async with running_hub(folder) as other:
            hub._watch_store()
            await until(lambda: hub.trouble is not None)  # `readyz` is 503 from then on
            await asyncio.sleep(0.2)  # in which it looks several times
            assert not any(hub.store.renewed.values()) and not any(other.store.renewed.values())
        await until(lambda: hub.store.renewed["replaced"] == 1)


# -- how long a start takes --------------------------------------------------------------------------------------------


def test_a_start_reads_no_more_when_more_is_stored(tmp_path: Path) -> None:
    """Counted in steps of SQLite's virtual machine, which do not depend on the machine."""

    def steps(calls: int) -> int:
        database = Database(tmp_path / f"{calls}.sqlite3")
        with database._transaction():
            database.execute("INSERT INTO meta VALUES ('worker_seq', ?)", (calls,))
            for number in range(calls):
                state = '"live"' if number < 3 else '"ended","ended_at":"2026"'
                record = f'{{"state":{state}}}'
                database.execute("INSERT INTO calls (call_id, record) VALUES (?, ?)", (f"c{number}", record))
                database.execute("INSERT INTO events VALUES (?, NULL, ?, 'engine.state', '{}')", (number + 1, number))
        counted = [0]

        def count() -> None:
            counted[0] += 1

        database._connection.set_progress_handler(count, 1)
        database.head()
        database._connection.set_progress_handler(None, 1)
        database.close()
        return counted[0]

    few, many = steps(30), steps(3000)
    assert many <= few * 1.2, (few, many)


def test_what_a_start_asks_is_answered_by_an_index(tmp_path: Path) -> None:
    database, jobs = Database(tmp_path / FILE), JobDatabase(tmp_path / "jobs.sqlite3")
    for one, query, index in (
        (database, store_file.OPEN_CALLS, "open_calls"),
        (jobs, job_file.OPEN_JOBS, "open_jobs"),
    ):
        (plan,) = one.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
        assert f"INDEX {index}" in plan[3], plan
    database.close()
    jobs.close()


async def test_a_store_of_a_newer_program_is_refused_and_left_alone(tmp_path: Path, sample: Path) -> None:
    shutil.copy(sample, tmp_path / FILE)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute(f"PRAGMA user_version = {len(store_file.MIGRATIONS) + 1}")
    with pytest.raises(StoreError, match="newer"):
        await EventStore(tmp_path).start()
    assert aside(tmp_path) == []
