"""The store over the years: files of older programs open, old calls go, and nothing live waits for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from config.load import parse
from lab.events.samples import ended, final, kinds, running_hub, speech, started, take
from lab.patience import seconds, timeout
from lab.worker.peers import COMMAND
from mediaworker.events.database import Database
from mediaworker.events.frame import decode
from mediaworker.events.hub import EventHub
from mediaworker.events.retention import RetentionTask, file_bytes
from mediaworker.events.schema import Dtmf, EngineState, Event
from mediaworker.events.store import FILE, EventStore, StoreError
from mediaworker.events.subscription import ResumeError, SubscriptionClosed
from mediaworker.events.tables import MIGRATIONS
from mediaworker.storage.sure_clock import HELD_S

V1 = Path(__file__).parents[1] / "data/store-v1.sqlite3"
V1_ENDED, V1_OPEN = "0190a000-0000-7000-8000-000000000001", "0190a000-0000-7000-8000-000000000002"
DAY_S = 86400.0


class Clock:
    """Unix time that a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.set_by_s = 0.0
        """So much of it somebody has set, and has not gone by."""

    def set(self, by_s: float) -> None:
        self.now += by_s
        self.set_by_s += by_s

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def retention(hub: EventHub, clock: Clock, *, held_s: float = 2 * HELD_S, **limits: float) -> RetentionTask:
    """`held_s`: for so long nobody has set the clock."""
    settings = parse({"retention": {"max_bytes": 0, **limits}}).retention
    clock.now -= held_s
    task = RetentionTask(hub, settings, clock=clock, steady=lambda: clock.now - clock.set_by_s)
    clock.now += held_s
    return task


async def a_call(hub: EventHub, name: str, events: int = 3, text: str = "hello") -> list[str]:
    """An ended call's cursors."""
    subscription = hub.subscribe(call=name)
    await anext(subscription)
    hub.publish(name, 0, started())
    for number in range(events):
        hub.publish(name, 0, speech(f"{name}/{number}"))
        hub.publish(name, 0, final(f"{name}/{number}", text))
    hub.publish(name, 0, ended())
    await hub.flush()
    found = [event.cursor for event in await take(subscription, 2 * events + 2)]
    subscription.close()
    return found


async def stored(hub: EventHub) -> list[Event]:
    rows = await hub.read(lambda database: database.page(0, 2**62, -1))
    return [decode(frame) for _, frame in rows]


def calls_in(events: list[Event]) -> set[str | None]:
    return {event.call_id for event in events} - {None}


# -- migrations --------------------------------------------------------------------------------------------------------


async def test_a_store_of_version_1_is_brought_up_to_date_with_all_it_holds(tmp_path: Path) -> None:
    shutil.copy(V1, tmp_path / FILE)
    old = sqlite3.connect(V1)
    frames = [frame for (frame,) in old.execute("SELECT json FROM events ORDER BY id")]
    assert old.execute("PRAGMA user_version").fetchone() == (1,)
    old.close()
    async with running_hub(tmp_path) as hub:
        events = await stored(hub)
        assert len(events) > len(frames) == 7
        record = await hub.read(lambda database: database.call(V1_ENDED))
        assert record is not None and record.state == "ended" and record.reason == "hangup"
        closed = await hub.read(lambda database: database.call(V1_OPEN))
        assert closed is not None and closed.reason == "worker_restart"
        subscription = hub.subscribe(after=decode(frames[2]).cursor)
        assert kinds(await take(subscription, 3)) == ["hello", "transcript.final", "call.ended"]
        version = await hub.read(lambda database: database.execute("PRAGMA user_version").fetchone())
        vacuum = await hub.read(lambda database: database.execute("PRAGMA auto_vacuum").fetchone())
        assert (version, vacuum) == ((len(MIGRATIONS),), (2,))
    with sqlite3.connect(tmp_path / FILE) as connection:
        assert [frame for (frame,) in connection.execute("SELECT json FROM events ORDER BY id LIMIT 7")] == frames
    connection.close()


def contents(path: Path) -> tuple[object, ...]:
    connection = sqlite3.connect(path)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()
        return version, "\n".join(connection.iterdump())
    finally:
        connection.close()


@pytest.mark.parametrize(
    "broken",
    [
        "CREATE TABLE more (a); INSERT INTO missing VALUES (1);",
        "DELETE FROM events; DROP TABLE calls; SELECT 1 FROM no;",
    ],
)
async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    shutil.copy(V1, tmp_path / FILE)
    before = contents(tmp_path / FILE)
    monkeypatch.setattr(Database, "MIGRATIONS", (MIGRATIONS[0], broken))
    with pytest.raises(StoreError, match="no such table"):
        await EventStore(tmp_path).start()
    assert contents(tmp_path / FILE) == before
    monkeypatch.undo()
    async with running_hub(tmp_path) as hub:
        assert calls_in(await stored(hub)) == {V1_ENDED, V1_OPEN}


def test_a_newer_store_stops_the_start_with_one_line(tmp_path: Path) -> None:
    shutil.copy(V1, tmp_path / FILE)
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    settings = {"DATA_DIR": str(tmp_path), "SIP__ENABLED": "false", "LOG__LEVEL": "error"}
    environ = {f"MEDIAWORKER_{key}": value for key, value in settings.items()}
    done = subprocess.run(
        [*COMMAND, "serve"], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=seconds(60)
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("mediaworker: data_dir: ") and f"version {len(MIGRATIONS) + 1}" in line


# -- retention ---------------------------------------------------------------------------------------------------------


async def test_calls_go_by_the_age_of_their_end(tmp_path: Path) -> None:
    clock = Clock()
    async with running_hub(tmp_path, clock=clock) as hub:
        hub.publish("long", 0, started())  # began first, ends last
        old = await a_call(hub, "old")
        clock.now += 20 * DAY_S
        hub.publish("long", 0, ended())
        young = await a_call(hub, "young")
        clock.now += 15 * DAY_S
        sweeper = retention(hub, clock, max_age_days=30)
        assert await sweeper.sweep() == 1
        assert (sweeper.erased_calls, sweeper.erased_events) == (1, len(old))
        assert calls_in(await stored(hub)) == {"long", "young"}
        assert [record.call_id for record in await hub.read(lambda database: database.calls(9))] == ["young", "long"]
        assert await sweeper.sweep() == 0
        with pytest.raises(ResumeError) as expired:
            hub.subscribe(after=old[0])
        assert expired.value.code == 4009
        subscription = hub.subscribe(after=young[0])
        assert len(await take(subscription, len(young))) == len(young)
        beginning = hub.subscribe(after=f"{young[0].partition(':')[0]}:0")
        assert kinds(await take(beginning, 2)) == ["hello", "call.started"]


async def test_damaged_files_are_erased_where_a_linked_store_lies(tmp_path: Path) -> None:
    clock, disk, data = Clock(), tmp_path / "disk", tmp_path / "data"
    for folder in (disk, data):
        folder.mkdir()
    (data / FILE).symlink_to(disk / "calls.sqlite3")
    (disk / "calls.sqlite3").write_bytes(b"this is no database" * 40)
    async with running_hub(data, clock=clock) as hub:
        (name,) = hub.store.set_aside
        os.utime(disk / name, (clock.now - 60 * DAY_S, clock.now - 60 * DAY_S))
        await retention(hub, clock, max_age_days=30).sweep()
        assert not (disk / name).exists()


async def test_a_clock_that_is_ahead_for_a_minute_erases_nothing(tmp_path: Path) -> None:
    clock = Clock()
    async with running_hub(tmp_path, clock=clock) as hub:
        await a_call(hub, "old")
        sweeper = retention(hub, clock, max_age_days=30)
        clock.set(31 * DAY_S)
        damaged = tmp_path / f"{FILE}.damaged-2026-01-01T00-00-00Z"
        damaged.touch()
        os.utime(damaged, (clock.now - 60 * DAY_S, clock.now - 60 * DAY_S))
        assert await sweeper.sweep() == 0
        await a_call(hub, "by the wrong clock")
        clock.now += 60
        assert await sweeper.sweep() == 0
        clock.set(-31 * DAY_S)
        clock.now += HELD_S - 60
        assert await sweeper.sweep() == 0 and damaged.exists()
        assert calls_in(await stored(hub)) == {"old", "by the wrong clock"}
        clock.now += 31 * DAY_S
        assert await sweeper.sweep() == 1, "it has run for as long"
        assert not damaged.exists()
        clock.set(31 * DAY_S)  # set in earnest: nobody sets it back
        assert await sweeper.sweep() == 0
        clock.now += HELD_S + 1
        assert await sweeper.sweep() == 1


@pytest.mark.parametrize(("ahead_days", "erased"), [(0.0, 1), (31.0, 0)])
async def test_a_start_erases_at_once_if_the_clock_agrees_with_the_latest_call(
    tmp_path: Path, ahead_days: float, erased: int
) -> None:
    clock = Clock()
    async with running_hub(tmp_path, clock=clock) as hub:
        await a_call(hub, "old")
        clock.now += 40 * DAY_S
        hub.publish("open at a kill", 0, started())
        await a_call(hub, "young")
    clock.set(ahead_days * DAY_S)
    async with running_hub(tmp_path, clock=clock) as hub:  # which ends the open call by its own clock
        sweeper = retention(hub, clock, max_age_days=30, held_s=1)
        sweeper.start()
        async with timeout(20):
            while not sweeper.swept:  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.01)
        await sweeper.stop()
        assert sweeper.erased_calls == erased


async def test_expired_cursors_stay_expired_and_rows_are_not_given_twice(tmp_path: Path) -> None:
    clock = Clock()
    async with running_hub(tmp_path, clock=clock) as hub:
        cursors = await a_call(hub, "c")
        clock.now += DAY_S
        await retention(hub, clock, max_age_days=0.5).sweep()
        assert await stored(hub) == []
    clock.now -= 3 * DAY_S  # the clock of a machine that was repaired
    async with running_hub(tmp_path, clock=clock) as hub:
        with pytest.raises(ResumeError, match="expired"):
            hub.subscribe(after=cursors[0])
        after_last = hub.subscribe(after=cursors[-1])
        again = await a_call(hub, "d")
        assert int(again[0].partition(":")[2]) > int(cursors[-1].partition(":")[2])
        assert kinds(await take(after_last, 2)) == ["hello", "call.started"]


async def test_events_without_a_call_go_too_but_keep_counting(tmp_path: Path) -> None:
    clock = Clock()
    async with running_hub(tmp_path, clock=clock) as hub:
        for _ in range(3):
            hub.publish(None, 0, EngineState("ready"))
        await a_call(hub, "erased by its owner")
        await hub.ended_calls.erase("erased by its owner")
        await a_call(hub, "c")
        clock.now += DAY_S
        await retention(hub, clock, max_age_days=0.5).sweep()
        rows = await hub.read(lambda database: database.execute("SELECT type, seq FROM events").fetchall())
        assert rows == [("engine.state", 3)]
    async with running_hub(tmp_path, clock=clock) as hub:
        hub.publish(None, 0, EngineState("ready"))
        await hub.flush()
        assert [event.seq for event in await stored(hub)] == [3, 4]


async def test_a_file_over_its_limit_shrinks_and_loses_what_ended_first(tmp_path: Path) -> None:
    clock = Clock()
    async with running_hub(tmp_path, clock=clock) as hub:
        for number in range(40):
            await a_call(hub, f"c{number:02}", 10, "word " * 400)
        hub.publish("live", 0, started())
        await hub.flush()
        await hub.store.write(lambda database: database.checkpoint())
        before = (tmp_path / FILE).stat().st_size
        limit = before // 2
        sweeper = retention(hub, clock, max_bytes=limit)
        erased = await sweeper.sweep()
        assert 10 < erased < 40
        left = sorted(calls_in(await stored(hub)))
        assert left == [*(f"c{number:02}" for number in range(erased, 40)), "live"]
        assert (tmp_path / FILE).stat().st_size <= limit
        assert file_bytes(tmp_path / FILE) >= (tmp_path / FILE).stat().st_size
        assert await sweeper.sweep() == 0
        # What is gone is not in the file any more: overwritten, not only unlinked.
        assert b"c00/0" not in (tmp_path / FILE).read_bytes()


async def test_a_store_that_is_closed_is_one_file(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        await a_call(hub, "c")
    assert sorted(os.listdir(tmp_path)) == [FILE, "lock"]


async def test_a_long_call_goes_in_pieces_between_which_live_events_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mediaworker.events.ended_calls.EXPIRE_ROWS", 20)
    clock, pieces = Clock(), []
    expire = Database.expire
    monkeypatch.setattr(Database, "expire", lambda self, *given: pieces.append(expire(self, *given)) or pieces[-1])
    async with running_hub(tmp_path, clock=clock) as hub:
        await a_call(hub, "long", 400)
        clock.now += DAY_S
        hub.publish("live", 0, started())
        await hub.flush()
        live = hub.subscribe(call="live", types=frozenset({"dtmf"}))
        await anext(live)
        sweep = asyncio.create_task(retention(hub, clock, max_age_days=0.5).sweep())
        interleaved = 0
        while not sweep.done():
            hub.publish("live", 0, Dtmf("inbound", "1", 80))
            await take(live, 1)
            interleaved += not sweep.done()
        assert await sweep == 1
        assert all(removed <= 20 for removed, _ in pieces) and sum(removed for removed, _ in pieces) == 802
        assert interleaved > len(pieces) // 4, "live events went out between the pieces"
        assert calls_in(await stored(hub)) == {"live"}


async def test_a_subscriber_that_is_catching_up_is_told_and_not_left_with_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mediaworker.events.event_log.TAIL", 10)
    clock = Clock()
    async with running_hub(tmp_path, clock=clock) as hub:
        cursors = [await a_call(hub, f"c{number}", 40) for number in range(5)]
        subscription = hub.subscribe(after=cursors[0][0])
        received = await take(subscription, 20)  # in the middle of the first page
        clock.now += DAY_S
        await retention(hub, clock, max_age_days=0.5).sweep()
        with pytest.raises(SubscriptionClosed) as closed:
            while True:
                received += await take(subscription, 1)
        assert closed.value.code == 4009
        seqs = [event.seq for event in received if event.call_id == "c0"]
        assert seqs == list(range(2, 2 + len(seqs)))


async def test_an_interrupted_erasure_is_finished_by_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mediaworker.events.ended_calls.EXPIRE_ROWS", 20)
    clock = Clock()
    async with running_hub(tmp_path, clock=clock) as hub:
        await a_call(hub, "c", 100)
        clock.now += DAY_S
        await hub.store.write(lambda database: database.expire("c", 50))  # and then the worker is killed
    async with running_hub(tmp_path, clock=clock) as hub:
        assert 0 < len(await stored(hub)) < 202
        await retention(hub, clock, max_age_days=0.5).sweep()
        assert calls_in(await stored(hub)) == set()
        assert await hub.read(lambda database: database.calls(9)) == []


async def test_the_sweep_runs_by_itself_and_survives_a_store_in_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with running_hub(tmp_path, clock=clock) as hub:
        await a_call(hub, "c")
        clock.now += DAY_S
        await hub.store.write(lambda database: database.execute("PRAGMA query_only = ON"))
        monkeypatch.setattr("mediaworker.events.retention.SWEEP_EVERY_S", 0.02)
        sweeper = retention(hub, clock, max_age_days=0.5)
        sweep, sweeps = sweeper.sweep, 0

        async def counted() -> int:
            nonlocal sweeps
            sweeps += 1
            return await sweep()

        monkeypatch.setattr(sweeper, "sweep", counted)
        sweeper.start()
        async with timeout(20):
            while sweeps < 3:  # noqa: ASYNC110 - the first two have failed
                await asyncio.sleep(0.01)
        assert sweeper.erased_calls == 0
        await hub.store.write(lambda database: database.execute("PRAGMA query_only = OFF"))
        async with timeout(20):
            while not sweeper.erased_calls:  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.01)
        await sweeper.stop()
        assert calls_in(await stored(hub)) == set()
