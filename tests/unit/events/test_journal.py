"""The journal: what waits for a commit, what is given up while the disk does not take it, and in which order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from mediaworker.events import journal as journals
from mediaworker.events.database import EventRow
from mediaworker.events.journal import Journal
from mediaworker.events.schema import CallRecord
from mediaworker.events.store import EventStore
from mediaworker.events.subscription import Entry


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
    journal: Journal
    store: HeldStore
    seen: list[str]

    def put(self, row: int | None, frame: str, record: CallRecord | None = None) -> Entry:
        entry = Entry(row, "c1", row or 0, "call.dtmf", frame, 0.0, record=record)
        self.journal.put(entry)
        return entry

    async def committing(self) -> None:
        async with asyncio.timeout(10):
            await self.store.waiting.wait()

    async def stored(self) -> None:
        self.store.go.set()
        async with asyncio.timeout(10):
            await self.journal.stop()


@asynccontextmanager
async def held(directory: Path) -> AsyncIterator[Scene]:
    store = HeldStore(directory)
    await store.start()
    seen: list[str] = []
    scene = Scene(Journal(store, lambda entry: seen.append(entry.frame)), store, seen)
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
    monkeypatch.setattr(journals, "LINE_MAX", 3)
    async with held(tmp_path) as scene:
        scene.put(1, "one")
        for frame in ("a", "b"):
            scene.put(None, frame)
        assert scene.journal.shed == 0
        for frame in ("c", "d"):
            scene.put(None, frame)
        assert scene.journal.shed == 2
        scene.put(2, "two")  # a durable event is never shed
        await scene.stored()
        assert scene.seen == ["one", "a", "b", "two"]


async def test_an_event_is_unsaved_from_the_oldest_one_that_waits(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        before = Entry(4, "c1", 4, "call.dtmf", "", 0.0)
        oldest, newest = scene.put(5, "five"), scene.put(6, "six")
        unsaved = [scene.journal.is_unsaved(entry) for entry in (before, oldest, newest)]
        assert unsaved == [False, True, True]
        await scene.stored()
        assert not scene.journal.is_unsaved(newest)
        assert scene.journal.committed == 6


async def test_as_many_events_as_the_limit_wait_without_trouble(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        scene.journal.limit = 2
        scene.put(1, "one")
        scene.put(2, "two")
        assert (scene.journal.trouble, scene.journal.lost, scene.journal.floor, scene.seen) == (None, 0, 0, [])
        scene.put(3, "three")
        assert scene.journal.trouble == "the disk does not keep up"
        assert (scene.journal.lost, scene.journal.floor, scene.journal.backlog) == (1, 1, 2)
        assert scene.seen == ["one", "two", "three"]


async def test_an_event_of_the_commit_under_way_is_never_given_up(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        scene.journal.limit = 2
        scene.put(1, "one")
        await scene.committing()
        scene.put(2, "two")
        scene.put(3, "three")
        assert (scene.journal.lost, scene.journal.floor) == (1, 2)
        await scene.stored()
        stored = await scene.store.read(lambda database: database.page(0, 9, -1, call_id="c1", types=None))
        assert [row for row, _ in stored] == [1, 3]


async def test_the_record_of_a_lost_event_is_stored_with_the_next_commit(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        scene.journal.limit = 2
        scene.put(1, "one", call("c1"))
        for row in (2, 3, 4):  # the second event that is lost has no record to keep
            scene.put(row, str(row))
        assert scene.journal.lost == 2
        await scene.stored()
        head = await scene.store.write(lambda database: database.head())
        assert [record.call_id for record in head.open_calls] == ["c1"]


async def test_the_time_of_a_commit_is_measured_from_its_beginning(tmp_path: Path) -> None:
    async with held(tmp_path) as scene:
        began = time.monotonic()
        scene.put(1, "one")
        await scene.committing()
        await scene.stored()
        assert 0 < scene.journal.commit_s.sum <= time.monotonic() - began
        assert sum(scene.journal.commit_s.counts) == 1
