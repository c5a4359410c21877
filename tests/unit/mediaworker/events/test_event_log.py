"""The event log: what waits for a commit, what is given up while the disk does not take it, and in which order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.patience import timeout
from mediaworker.events import event_log as event_logs
from mediaworker.events.event_log import EventLog
from mediaworker.events.schema import CallRecord
from mediaworker.events.store import EventStore
from mediaworker.events.subscription import Entry
from mediaworker.events.tables import EventRow, Head


class HeldStore(EventStore):
    """A store whose commits wait until `go` is set, as on a disk that does not answer."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.go, self.waiting = asyncio.Event(), asyncio.Event()

    async def append(self, rows: Iterable[EventRow], records: Iterable[CallRecord], floor: int) -> None:
        self.waiting.set()
        await self.go.wait()
        await super().append(rows, records, floor)


@dataclass
class Scene:
    log: EventLog
    store: HeldStore
    seen: list[str]

    def put(self, row: int | None, frame: str, record: CallRecord | None = None) -> Entry:
        entry = Entry(row, "c1", row or 0, "call.dtmf", frame, 0.0, record=record)
        self.log.put(entry)
        return entry

    async def committing(self) -> None:
        async with timeout(10):
            await self.store.waiting.wait()

    async def stored(self) -> None:
        self.store.go.set()
        async with timeout(10):
            await self.log.stop()


@asynccontextmanager
async def held(directory: Path) -> AsyncIterator[Scene]:
    store = HeldStore(directory)
    await store.start()
    seen: list[str] = []
    scene = Scene(EventLog(store, lambda entry: seen.append(entry.frame)), store, seen)
    try:
        yield scene
        await scene.stored()
    finally:
        await store.stop()


def call(call_id: str) -> CallRecord:
    return CallRecord(
        call_id=call_id, state="live", source="sip", direction="inbound", from_="a", to="b", external_id="", legs=[],
        custom={}, started_at="2026-01-01T00:00:00.000Z", seq=1, at_ms=0,
    )  # fmt: skip


async def test_every_transient_event_beyond_a_full_line_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_logs, "LINE_MAX", 3)
    async with held(tmp_path) as scene:
        scene.put(1, "one")
        for frame in ("a", "b"):
            scene.put(None, frame)
        assert scene.log.shed == 0
        for frame in ("c", "d"):
            scene.put(None, frame)
        assert scene.log.shed == 2
        scene.put(2, "two")  # a durable event is never shed
        await scene.stored()
        assert scene.seen == ["one", "a", "b", "two"]


async def test_an_event_is_unsaved_from_the_oldest_one_that_waits(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        before = Entry(4, "c1", 4, "call.dtmf", "", 0.0)
        oldest, newest = scene.put(5, "five"), scene.put(6, "six")
        unsaved = [scene.log.is_unsaved(entry) for entry in (before, oldest, newest)]
        assert unsaved == [False, True, True]
        await scene.stored()
        assert not scene.log.is_unsaved(newest)
        assert scene.log.committed == 6


async def test_as_many_events_as_the_limit_wait_without_trouble(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        scene.log.limit = 2
        scene.put(1, "one")
        scene.put(2, "two")
        assert (scene.log.trouble, scene.log.lost, scene.log.floor, scene.seen) == (None, 0, 0, [])
        scene.put(3, "three")
        assert scene.log.trouble == "the disk does not keep up"
        assert (scene.log.lost, scene.log.floor, scene.log.backlog) == (1, 1, 2)
        assert scene.seen == ["one", "two", "three"]


async def test_an_event_of_the_commit_under_way_is_never_given_up(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        scene.log.limit = 2
        scene.put(1, "one")
        await scene.committing()
        scene.put(2, "two")
        scene.put(3, "three")
        assert (scene.log.lost, scene.log.floor) == (1, 2)
        await scene.stored()
        stored = await scene.store.read(lambda database: database.page(0, 9, -1, call_id="c1", types=None))
        assert [row for row, _ in stored] == [1, 3]


async def test_the_record_of_a_lost_event_is_stored_with_the_next_commit(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        scene.log.limit = 2
        scene.put(1, "one", call("c1"))
        for row in (2, 3, 4):  # the second event that is lost has no record to keep
            scene.put(row, str(row))
        assert scene.log.lost == 2
        await scene.stored()
        head = await scene.store.write(lambda database: database.head())
        assert [record.call_id for record in head.open_calls] == ["c1"]


async def test_the_time_of_a_commit_is_measured_from_its_beginning(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        began = time.monotonic()
        scene.put(1, "one")
        await scene.committing()
        await scene.stored()
        assert 0 < scene.log.commit_s.sum <= time.monotonic() - began
        assert sum(scene.log.commit_s.counts) == 1


async def test_the_floor_only_rises_and_expires_the_cursors_below_it(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        scene.log.raise_floor(5)
        scene.log.raise_floor(3)
        assert scene.log.floor == 5
        # 0 is before everything that is still stored, and the floor itself misses nothing.
        assert [scene.log.is_expired(row) for row in (0, 1, 4, 5, 6)] == [False, True, True, False, False]


async def test_rows_begin_at_the_first_one_of_the_run_and_have_no_gaps(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        scene.log.begin(Head("s", 7, reserved=0, floor=3, worker_seq=0, open_calls=()), 100)
        assert (scene.log.row, scene.log.visible_row, scene.log.committed, scene.log.floor) == (7, 7, 7, 3)
        assert scene.log.next_row == 100
        scene.put(100, "a")
        assert (scene.log.next_row, scene.log.visible_row) == (101, 7)
        assert await scene.log.has_row(100), "rows of this run need not be on the disk"
        await scene.stored()
        assert scene.log.visible_row == 100
        found = [await scene.log.has_row(row) for row in (0, 3, 7, 99, 100)]
        assert found == [True, True, True, False, True]


async def test_the_tail_keeps_the_latest_committed_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_logs, "TAIL", 2)
    async with held(tmp_path) as scene:
        for row in (1, 2, 3):
            scene.put(row, str(row))
        await scene.stored()
        assert [entry.row for entry in scene.log.tail] == [2, 3]
        assert scene.log.floor == 0, "the first event is on the disk"


async def test_an_unsaved_event_leaves_the_tail_only_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_logs, "TAIL", 2)
    async with held(tmp_path) as scene:
        scene.log.limit = 2
        scene.log.fail("no disk")
        for row in (1, 2, 3, 4):
            scene.put(row, "{}")
        # Rows 1 and 2 were given up and count as saved no more; the tail holds what waits for the disk.
        assert [entry.row for entry in scene.log.tail] == [3, 4]
        assert (scene.log.floor, scene.log.lost) == (2, 2)
        assert scene.log.frame(scene.log.tail[0]) == '{,"stored":false}'


async def test_an_erased_call_leaves_the_tail(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        scene.put(1, "one")
        await scene.stored()
        scene.log.forget("another")
        assert len(scene.log.tail) == 1
        scene.log.forget("c1")
        assert not scene.log.tail


async def test_the_tail_is_bounded_while_a_commit_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_logs, "TAIL", 2)
    async with held(tmp_path) as scene:
        scene.log.limit = 2
        scene.put(1, "1")
        await scene.committing()
        scene.log.fail("the commit does not answer")
        for row in (2, 3, 4):
            scene.put(row, str(row))
        assert [entry.row for entry in scene.log.tail] == [1, 2, 3, 4]
        scene.put(5, "5")
        assert [entry.row for entry in scene.log.tail] == [2, 3, 4, 5]
