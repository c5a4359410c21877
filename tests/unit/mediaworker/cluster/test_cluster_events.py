"""Events of several workers without NATS: whatever the order in which things come, each reader sees each event once."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import Settings
from mediaworker.cluster.events import INDEXES, ClusterEvents, merged, origin, stamp
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import CallEnded, CallStarted, Dtmf, EventError, TranscriptFinal, TranscriptPartial
from mediaworker.events.store import EventStore
from mediaworker.events.subscription import MAX_SEEN, Cursor, ResumeError, Subscription, SubscriptionClosed

WORKERS = 3
STARTED = CallStarted("sip", "inbound", "1", "2", "x", [], {})


async def no_answer() -> None:
    """Nobody has ended a call."""


class Member:
    """A worker: its hub, and the events of all as it knows them."""

    def __init__(self, folder: Path, number: int) -> None:
        self.hub = EventHub(Settings(), EventStore(folder / f"{number}"))
        store = EventStore(folder / f"{number}" / "cluster")
        self.events = ClusterEvents(Settings(), store, self.hub, ask=no_answer, prompt=lambda: False)
        self.published: list[tuple[str, str]] = []
        """(call, frame) of what the stream has not taken."""
        self.fetched = 0
        """Messages of the stream that have come."""

    async def start(self) -> None:
        await self.hub.start()
        self.hub.on_shown.append(lambda entry: self._publish(entry))
        await self.events.start("stream")

    def _publish(self, entry: Any) -> None:
        if entry.row is not None and entry.call_id is not None:
            self.published.append((entry.call_id, entry.frame))

    async def stop(self) -> None:
        await self.events.stop()
        await self.hub.stop()


class World:
    def __init__(self, folder: Path) -> None:
        self.members = [Member(folder, number) for number in range(WORKERS)]
        self.stream: list[bytes] = []
        self.calls = 0
        self.open: list[list[str]] = [[] for _ in range(WORKERS)]

    def call(self, worker: int) -> None:
        self.calls += 1
        self.open[worker].append(f"call-{self.calls}")
        self.members[worker].hub.publish(f"call-{self.calls}", 0, STARTED)

    def press(self, worker: int) -> None:
        if self.open[worker]:
            self.members[worker].hub.publish(self.open[worker][0], 0, Dtmf("main", "1", 100))

    def end(self, worker: int) -> None:
        if self.open[worker]:
            self.members[worker].hub.publish(self.open[worker].pop(), 0, CallEnded("hangup", 0, []))

    def take(self, worker: int, count: int, again: bool) -> None:
        """The stream takes some of what a worker has published, by calls; `again`: it does not hear that."""
        member = self.members[worker]
        taken, left = member.published[:count], member.published[count:]
        calls: dict[str, list[str]] = {}
        for call_id, frame in taken:
            calls.setdefault(call_id, []).append(frame)
        for frames in reversed(calls.values()):  # calls overtake each other
            self.stream.append("\n".join(frames).encode())
        if not again:
            member.published[:] = left

    def fetch(self, worker: int, count: int) -> None:
        member = self.members[worker]
        for payload in self.stream[member.fetched : member.fetched + count]:
            member.fetched += 1
            member.events.receive(member.fetched, payload)

    async def settle(self) -> None:
        for member in self.members:
            await member.hub.flush()
            await member.events.flush()


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    folder = Path(tempfile.mkdtemp())
    made = World(folder)
    try:
        for member in made.members:
            await member.start()
        yield made
    finally:
        for member in made.members:
            await member.stop()
        shutil.rmtree(folder)


async def read(events: ClusterEvents, cursor: str, count: int | None = None) -> tuple[list[dict[str, Any]], str]:
    """So many durable events behind the cursor, or all that there are, and where that leads."""
    subscription = events.subscribe(after=cursor)
    found: list[dict[str, Any]] = []
    try:
        await anext(subscription)
        while count is None or len(found) < count:
            event = msgspec.json.decode(await asyncio.wait_for(anext(subscription), 0.02))
            found.append(event)
            cursor = event["cursor"]
    except TimeoutError:
        pass
    finally:
        subscription.close()
    return found, cursor


async def stay(subscription: Subscription) -> dict[str | None, list[int]]:
    """The numbers of all that waits for a subscriber, by calls."""
    calls: dict[str | None, list[int]] = {}
    with contextlib.suppress(TimeoutError):
        await anext(subscription)
        while True:
            event = msgspec.json.decode(await asyncio.wait_for(anext(subscription), 0.02))
            calls.setdefault(event["call_id"], []).append(event["seq"])
    subscription.close()
    return calls


workers = st.integers(0, WORKERS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["call", "press", "press", "end"]), workers),
        st.tuples(st.just("take"), workers, st.integers(1, 6), st.booleans()),
        st.tuples(st.just("fetch"), workers, st.integers(1, 6)),
        st.tuples(st.just("read"), workers, st.integers(1, 4)),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_reader_that_goes_from_worker_to_worker_sees_each_event_once(steps: Sequence[tuple]) -> None:
    asyncio.run(_check(steps))


async def _check(steps: Sequence[tuple]) -> None:
    async with world() as w:
        staying = [member.events.subscribe() for member in w.members]
        seen: list[dict[str, Any]] = []
        cursor = "stream:0"
        last_reader = 0
        for step in steps:
            match step:
                case "call" | "press" | "end" as kind, worker:
                    getattr(w, kind)(worker)
                case "take", worker, count, again:
                    await w.settle()
                    w.take(worker, count, again)
                case "fetch", worker, count:
                    w.fetch(worker, count)
                case "read", worker, count:
                    await w.settle()
                    # What the cursor presupposes must have come, or the reader would wait for it.
                    if Cursor.parse(cursor).row <= w.members[worker].events.cursor.row:
                        found, cursor = await read(w.members[worker].events, cursor, count)
                        seen += found
                        last_reader = worker
        await w.settle()
        for worker in range(WORKERS):
            w.take(worker, 10_000, False)
        for worker in range(WORKERS):
            w.fetch(worker, 10_000)
        await w.settle()
        found, cursor = await read(w.members[(last_reader + 1) % WORKERS].events, cursor)
        seen += [event for event in found if event["call_id"] is not None]
        calls: dict[str, list[int]] = {}
        for event in seen:
            if event["call_id"] is not None:
                calls.setdefault(event["call_id"], []).append(event["seq"])
        assert len(calls) == w.calls
        for call_id, numbers in calls.items():
            assert numbers == list(range(1, len(numbers) + 1)), (call_id, numbers)
        # Those who have stayed at one worker all the time have seen the same.
        for subscription in staying:
            assert {key: value for key, value in (await stay(subscription)).items() if key is not None} == calls
        # Every worker knows the same, under the same rows.
        rows = [await m.events.read(lambda database: database.page(0, 2**60, 10_000)) for m in w.members]
        assert all(each == rows[0] for each in rows) and len(rows[0]) == sum(map(len, calls.values()))
        live = [sorted(record.call_id for record in member.events.calls) for member in w.members]
        assert live == [sorted(name for names in w.open for name in names)] * WORKERS


async def test_a_call_that_is_published_twice_as_a_whole_is_there_once() -> None:
    async with world() as w:
        w.call(1)
        w.press(1)
        w.end(1)
        await w.settle()
        w.take(1, 10, True)
        w.take(1, 10, False)
        w.fetch(0, 10)
        await w.settle()
        found, _ = await read(w.members[0].events, "stream:0")
        assert [event["seq"] for event in found if event["call_id"]] == [1, 2, 3]


async def test_who_comes_while_the_stream_takes_nothing_is_told_how_far_each_event_leads() -> None:
    async with world() as w:
        events = w.members[0].events
        w.call(0)
        for _ in range(4):
            w.press(0)
        await w.settle()
        cursor, found = "stream:0", []
        while len(found) < 5:
            more, cursor = await read(events, cursor, 1)
            found += [event["seq"] for event in more if event["call_id"]]
            assert more
        assert found == [1, 2, 3, 4, 5]


async def test_a_restarted_worker_goes_on_where_it_was_and_knows_who_has_which_call() -> None:
    async with world() as w:
        w.call(1)
        w.call(2)
        w.press(1)
        await w.settle()
        for worker in (1, 2):
            w.take(worker, 10, False)
        w.fetch(0, 10)
        await w.settle()
        member, own = w.members[0], [each.hub.cursor.store_id for each in w.members]
        assert [member.events.owner(f"call-{number}") for number in (1, 2)] == [own[1], own[2]]
        await member.stop()
        again = Member(member.hub.file.parent.parent, 0)
        w.members[0] = again
        await again.start()
        assert again.events.next_message == 2, "the last one may have come in part"
        assert [again.events.owner(f"call-{number}") for number in (1, 2)] == [own[1], own[2]]
        w.press(1)
        await w.settle()
        w.take(1, 10, False)
        again.fetched = 1
        w.fetch(0, 10)
        await w.settle()
        found, _ = await read(again.events, "stream:0")
        assert [(event["call_id"], event["seq"]) for event in found if event["call_id"]] == [
            ("call-1", 1), ("call-1", 2), ("call-2", 1), ("call-1", 3),
        ]  # fmt: skip


async def test_cursors_that_cannot_be_resumed_from() -> None:
    async with world() as w:
        events = w.members[0].events
        for cursor in ("another:0", "stream", "stream:1.a", "stream:x", "stream:0.a.1.b", "stream:0" + ".a.1" * 9):
            with pytest.raises(ResumeError):
                events.subscribe(after=cursor)
        events.expire_before(10)
        with pytest.raises(ResumeError, match="expired"):
            events.subscribe(after=f"stream:{5 * INDEXES}")
        with pytest.raises(ResumeError, match="another store's|unknown"):
            w.members[0].hub.subscribe(after=f"{w.members[0].hub.cursor}.a.1")


async def test_noise_in_the_stream_harms_nothing() -> None:
    async with world() as w:
        events = w.members[0].events
        for number, payload in enumerate((b"", b"\xff\xfe", b"{}", b"null\n[]", b'{"v":1,"type":"dtmf"}'), start=1):
            events.receive(number, payload)
            events.receive_partial("w", payload.decode("utf-8", "replace"))
        w.call(1)
        w.press(1)
        await w.settle()
        (_, _), (call_id, press) = w.members[1].published
        events.receive(8, press.encode())
        assert events.strays == 1 and list(events.calls) == [], f"the beginning of {call_id} is not known"


def test_a_cursor_has_so_many_workers_and_no_more() -> None:
    seen = tuple((f"w{number}", number) for number in range(MAX_SEEN))
    assert merged((("own", 5),), seen) == (*seen[1:], ("own", 5))
    assert merged((("w0", 7),), (("w0", 9),)) == (("w0", 9),)
    assert Cursor.parse(str(Cursor("s", 1, seen))) == Cursor("s", 1, seen)


def test_a_frame_is_stamped_once() -> None:
    frame = '{"v":1,"type":"alert","cursor":"a.3:9","text":"\\"cursor\\":\\"x\\""}'
    assert origin(frame) == Cursor("a", 3)
    assert stamp(frame, "s:9.b.4") == frame.replace("a.3:9", "s:9.b.4", 1)
    with pytest.raises(EventError):
        origin("{}")


async def test_a_cursor_that_never_comes_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mediaworker.cluster.events.CATCH_UP_S", 0.05)
    async with world() as w:
        subscription = w.members[0].events.subscribe(after=f"stream:{99 * INDEXES}")
        with pytest.raises(SubscriptionClosed, match="unknown cursor"):
            await anext(subscription)
            await anext(subscription)


async def test_a_partial_that_its_final_has_overtaken_is_not_shown() -> None:
    async with world() as made:
        speaker, listener = made.members[0], made.members[1]
        listening = listener.events.subscribe()
        partials: list[str] = []

        def shown(entry: Any) -> None:
            if entry.row is None:
                partials.append(entry.frame)

        speaker.hub.on_shown.append(shown)
        made.call(0)
        for name in ("one", "two"):
            speaker.hub.publish("call-1", 10, TranscriptPartial("main", "caller", name, 1, 0, 10, name, 3, "en"))
        speaker.hub.publish(
            "call-1", 20, TranscriptFinal("main", "caller", "one", 2, 0, 20, "one", 3, "en", 0, 0, "endpoint")
        )
        await made.settle()
        assert len(partials) == 2
        made.take(0, 9, again=False)
        made.fetch(1, 9)
        await made.settle()
        for frame in partials:
            listener.events.receive_partial(speaker.hub.cursor.store_id, frame)
        speaker.hub.publish("call-1", 30, CallEnded("hangup", 0, []))
        await made.settle()
        made.take(0, 9, again=False)
        made.fetch(1, 9)
        await made.settle()
        listener.events.receive_partial(speaker.hub.cursor.store_id, partials[1])
        heard = [msgspec.json.decode(frame) async for frame in until_ended(listening)]
        assert [(each["type"], each.get("text")) for each in heard] == [
            ("hello", None), ("call.started", None), ("transcript.final", "one"), ("transcript.partial", "two"),
            ("call.ended", None),
        ]  # fmt: skip


async def until_ended(listening: Subscription) -> AsyncIterator[str]:
    frames = aiter(listening)
    with contextlib.suppress(TimeoutError):
        while True:
            yield await asyncio.wait_for(anext(frames), 0.5)
