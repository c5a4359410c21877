"""The store: what is committed stays, through restarts, kills, full disks and two workers."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest

from lab.events.samples import ended, final, kinds, partial, running_hub, speech, started, take, until
from lab.house import ROOT
from lab.patience import wait_for
from mediaworker.events.call_record import RESTART_REVISION
from mediaworker.events.database import Database
from mediaworker.events.frame import decode
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import CallEnded, Dtmf, EngineState, Metrics, SpeechEnded, TranscriptFinal
from mediaworker.events.store import FILE, EventStore, StoreError
from mediaworker.events.subscription import Entry, ResumeError
from mediaworker.events.tables import MIGRATIONS


async def all_frames(hub: EventHub, call_id: str | None = None) -> list[str]:
    rows = await hub.read(lambda database: database.page(0, 2**62, -1, call_id=call_id))
    return [frame for _, frame in rows]


async def test_events_and_records_survive_a_restart(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        hub.publish("c1", 0, started())
        hub.publish("c1", 10, partial("u1", 1))
        hub.publish("c1", 900, final("u1"))
        hub.publish("c1", 1000, ended())
        await hub.flush()
        before = await all_frames(hub)
    async with running_hub(tmp_path) as hub:
        assert await all_frames(hub) == before
        assert kinds([decode(frame) for frame in before]) == ["call.started", "transcript.final", "call.ended"]
        record = await hub.read(lambda database: database.call("c1"))
        assert (record.state, record.reason, record.seq, record.from_) == ("ended", "hangup", 3, "+1")
        assert hub.call("c1") is None


async def test_the_store_id_stays_and_rows_only_grow(tmp_path: Path) -> None:
    cursors = []
    for _ in range(3):
        # A clock that stands still, or runs back: rows must grow all the same.
        async with running_hub(tmp_path, clock=lambda: 1000.0) as hub:
            hub.publish(None, 0, EngineState("ready"))
            await hub.flush()
            cursors.append(decode((await all_frames(hub))[-1]).cursor)
    stores, rows = zip(*(cursor.split(":") for cursor in cursors), strict=True)
    assert len(set(stores)) == 1
    assert sorted(set(map(int, rows))) == list(map(int, rows))


async def test_events_without_a_call_have_their_own_sequence(tmp_path: Path) -> None:
    for _ in range(2):
        async with running_hub(tmp_path) as hub:
            hub.publish(None, 0, EngineState("warming_up"))
            hub.publish("c" + str(hub.engine), 0, started())
            hub.publish(None, 0, EngineState("ready"))
            await hub.flush()
            found = [decode(frame) for frame in await all_frames(hub)]
    assert [event.seq for event in found if event.call_id is None] == [1, 2, 3, 4]


async def test_open_calls_are_ended_at_the_next_start(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        hub.publish("c1", 0, started())
        hub.publish("c1", 100, speech("u1"))
        hub.publish("c1", 700, final("u1"))
        hub.publish("c1", 800, speech("u2", "outbound", 750))
        hub.publish("c1", 1200, speech("u3", "inbound", 1100))
        hub.publish("c2", 0, started())
        hub.publish("c2", 50, ended())
    async with running_hub(tmp_path) as hub:
        found = [decode(frame) for frame in await all_frames(hub, "c1")]
        assert [event.seq for event in found] == list(range(1, 12))
        last = [event.body for event in found[5:]]
        ends = [body.utterance_id for body in last if isinstance(body, SpeechEnded)]
        assert [body.utterance_id for body in last if isinstance(body, TranscriptFinal)] == ends == ["u2", "u3"]
        assert all(body.revision == RESTART_REVISION for body in last if isinstance(body, TranscriptFinal))
        assert all(body.reason == "failed" for body in last if isinstance(body, TranscriptFinal))
        figures = last[-2]
        assert isinstance(figures, Metrics) and figures.durable
        assert figures.talk_ms == {"inbound": 100, "outbound": 450}
        assert isinstance(last[-1], CallEnded)
        assert (last[-1].reason, last[-1].duration_ms) == ("worker_restart", 1200)
        assert len(await all_frames(hub, "c2")) == 2, "an ended call is left alone"
        assert list(hub.calls) == []
    async with running_hub(tmp_path) as hub:
        assert len(await all_frames(hub, "c1")) == 11, "and not ended again"


KILLED = """
import asyncio, sys
from lab.events.samples import *
async def main(directory):
    async with running_hub(Path(directory)) as hub:
        subscription = hub.subscribe()
        await anext(subscription)
        hub.publish("c1", 0, started())
        for number in range(100000):
            hub.publish("c1", number, speech(f"u{number}"))
            hub.publish("c1", number, partial(f"u{number}", 1))
            hub.publish("c1", number, final(f"u{number}"))
            if hub.event_log.backlog > 200:
                await hub.flush()
            while subscription.waiting:
                print(await anext(subscription), flush=True)
asyncio.run(main(sys.argv[1]))
"""


async def test_whatever_a_subscriber_saw_survives_a_kill(tmp_path: Path) -> None:
    program = ("-c", KILLED, str(tmp_path))
    process = await asyncio.create_subprocess_exec(sys.executable, *program, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    seen = [await process.stdout.readline() for _ in range(500)]
    process.kill()
    seen += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    whole = [line.decode().strip() for line in seen if line.endswith(b"\n")]
    durable = [frame for frame in whole if '"transcript.partial"' not in frame]
    assert len(durable) > 300
    async with running_hub(tmp_path) as hub:
        stored = await all_frames(hub, "c1")
        assert stored[: len(durable)] == durable
        events = [decode(frame) for frame in stored]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        begun = [e.body.utterance_id for e in events if e.body.__struct_config__.tag == "speech.started"]
        finals = [e.body.utterance_id for e in events if isinstance(e.body, TranscriptFinal)]
        assert sorted(begun) == sorted(finals), "one final for every speech.started"
        assert isinstance(events[-1].body, CallEnded)


async def test_a_full_disk_stops_storing_but_not_the_fan_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mediaworker.events.event_log.RETRY_S", 0.02)
    async with running_hub(tmp_path) as hub:
        subscription = hub.subscribe(types=frozenset({"dtmf", "transcript.partial"}))
        hub.publish("c1", 0, started())
        await hub.flush()
        assert hub.trouble is None
        full = await hub.store.write(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
        await hub.store.write(lambda db: db.execute(f"PRAGMA max_page_count = {full}"))
        sent = 0
        while hub.trouble is None:
            hub.publish("c1", sent, Dtmf("inbound", "1", sent))
            hub.publish("c1", sent, partial("u", sent, "x" * 500))
            hub.publish("c1", sent, Dtmf("inbound", "2" * 500, sent))
            sent += 1
            await asyncio.sleep(0.001)
        assert "full" in hub.trouble
        assert hub.event_log.write_failures > 0
        hub.publish("c1", sent, Dtmf("inbound", "9", sent))
        await anext(subscription)
        received = []
        while not (isinstance((event := (await take(subscription, 1))[0]).body, Dtmf) and event.body.digit == "9"):
            received.append(event)
        assert [event.at_ms for event in received] == sorted(event.at_ms for event in received)
        assert sum(isinstance(event.body, Dtmf) for event in received) == 2 * sent, "nothing was missed meanwhile"
        # Resuming works from memory while the disk is full …
        resumed = hub.subscribe(after=received[-2].cursor, types=frozenset({"dtmf"}))
        assert kinds(await take(resumed, 2)) == ["hello", "dtmf"]
        with pytest.raises(StoreError):
            await hub.ended_calls.erase("c1")
        # … and all of it is stored once there is room.
        await hub.store.write(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
        await until(lambda: hub.trouble is None)
        assert hub.event_log.backlog == 0
        stored = [decode(frame) for frame in await all_frames(hub, "c1")]
        assert [event.seq for event in stored] == list(range(1, 2 * sent + 3))
        assert hub.event_log.lost == 0


async def test_events_given_up_expire_the_cursors_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mediaworker.events.event_log.RETRY_S", 0.02)
    monkeypatch.setattr("mediaworker.events.event_log.BATCH", 10)
    monkeypatch.setattr("mediaworker.events.event_log.TAIL", 10)
    async with running_hub(tmp_path) as hub:
        hub.event_log.limit = 50
        hub.publish("c1", 0, started())
        hub.publish("c2", 0, started())
        await hub.flush()
        early = str(hub.subscribe().cursor)
        await hub.store.write(lambda db: db.execute("PRAGMA query_only = ON"))
        hub.publish("c2", 1, ended())
        for number in range(200):
            hub.publish("c1", number, Dtmf("inbound", "1", number))
            await asyncio.sleep(0)
        assert hub.trouble is not None
        assert hub.event_log.backlog == 50
        assert hub.event_log.lost == 151
        assert len(hub.event_log.tail) <= 60
        late = str(hub.subscribe().cursor)
        with pytest.raises(ResumeError, match="expired"):
            hub.subscribe(after=early)
        await hub.store.write(lambda db: db.execute("PRAGMA query_only = OFF"))
        await until(lambda: hub.trouble is None)
        assert (await hub.read(lambda database: database.call("c2"))).state == "ended", "the record outlives its event"
    async with running_hub(tmp_path) as hub:
        with pytest.raises(ResumeError, match="expired"):
            hub.subscribe(after=early)
        subscription = hub.subscribe(after=late)
        assert kinds(await take(subscription, 3)) == ["hello", "metrics", "call.ended"]


async def test_a_disk_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mediaworker.events.event_log.STALL_S", 0.05)
    async with running_hub(tmp_path) as hub:
        subscription = hub.subscribe(types=frozenset({"call.started"}))
        await anext(subscription)
        other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # the writer now waits for this lock, up to 5 s
        hub.publish("c1", 0, started())
        assert kinds(await wait_for(take(subscription, 1), 3)) == ["call.started"]
        assert hub.trouble is not None
        assert "not answered" in hub.trouble
        other.execute("ROLLBACK")
        other.close()
        await until(lambda: hub.trouble is None)
        assert len(await all_frames(hub, "c1")) == 1
        assert hub.event_log.write_failures == 0


async def test_one_worker_owns_a_store(tmp_path: Path) -> None:
    async with running_hub(tmp_path):
        with pytest.raises(StoreError, match="another worker"):
            await EventStore(tmp_path).start()
    async with running_hub(tmp_path):
        pass


async def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    async with running_hub(tmp_path):
        pass
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(StoreError, match="version"):
        await EventStore(tmp_path).start()


async def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        await EventStore(tmp_path / "file" / "data").start()


def everything(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.iterdir())


async def test_erasing_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    secret = "my card number is 4111 1111"
    async with running_hub(tmp_path) as hub:
        hub.publish("c1", 0, started(from_="+15551234567"))
        hub.publish("c1", 0, final("u1", secret))
        hub.publish("c1", 0, ended())
        hub.publish("c2", 0, started())
        await hub.flush()
        middle = decode((await all_frames(hub, "c1"))[1]).cursor
        await hub.ended_calls.erase("c1")
        assert await all_frames(hub, "c1") == []
        assert await hub.read(lambda database: database.call("c1")) is None
        # A cursor to an erased event still stands for its place.
        subscription = hub.subscribe(after=middle)
        assert [event.call_id for event in await take(subscription, 2)] == [None, "c2"]
    written = everything(tmp_path)
    assert secret.encode() not in written
    assert b"+15551234567" not in written
    async with running_hub(tmp_path) as hub:
        told = kinds(await take(hub.subscribe(after=middle), 4))
        assert told == ["hello", "call.started", "metrics", "call.ended"]


async def test_calls_are_listed_newest_first_in_pages(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        for number in range(5):
            hub.publish(f"c{number}", 0, started())
        await hub.flush()
        assert [r.call_id for r in await hub.read(lambda database: database.calls(3))] == ["c4", "c3", "c2"]
        assert [r.call_id for r in await hub.read(lambda database: database.calls(3, "c2"))] == ["c1", "c0"]


def test_columns_of_a_call_are_its_records(tmp_path: Path) -> None:
    asyncio.run(_one_call(tmp_path))
    database = Database(tmp_path / FILE, read_only=True)
    row = database.execute("SELECT state, source, external_id, from_, to_ FROM calls").fetchone()
    assert row == ("ended", "twilio", "CA1", "+1", "+2")
    assert database.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


async def _one_call(directory: Path) -> None:
    async with running_hub(directory) as hub:
        hub.publish("c1", 0, started())
        hub.publish("c1", 0, ended())


async def test_nothing_is_seen_before_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mediaworker.events.event_log.BATCH", 2)
    async with running_hub(tmp_path) as hub:
        disk, hand_on = Database(tmp_path / FILE, read_only=True), hub.event_log._hand_on
        seen, early = [], []

        def check(entry: Entry) -> None:
            # Looked up in the same turn of the loop: no later commit can have come in between.
            if entry.row is not None and not disk.has_row(entry.row):
                early.append(entry.frame)
            seen.append(entry.type)
            hand_on(entry)

        hub.event_log._hand_on = check
        hub.publish("c1", 0, started())
        for number in range(9):
            hub.publish("c1", number, speech(f"u{number}"))
            hub.publish("c1", number, partial(f"u{number}", 1))
        await hub.flush()
        disk.close()
        assert not early
        assert seen == ["call.started", *["speech.started", "transcript.partial"] * 9]
        assert hub.trouble is None
