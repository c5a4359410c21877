"""The hub: order, resumption without gap or double, and what happens to subscribers that are slow."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.events.samples import ended, final, kinds, partial, running_hub, small_queue, speech, started, take
from lab.patience import timeout
from mediaworker.events.event_log import PAGE, TAIL
from mediaworker.events.frame import decode
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import (
    CallHeld,
    Dtmf,
    EngineState,
    EventBody,
    EventError,
    Hello,
    Lagged,
    Metrics,
    TranscriptFinal,
    TranscriptPartial,
)
from mediaworker.events.subscription import Cursor, Entry, ResumeError, Subscription, SubscriptionClosed

METRICS = ({"inbound": 10}, 0, 0, 0, {"inbound": 1.0})


def digit(number: int) -> Dtmf:
    return Dtmf("inbound", str(number % 10), number)


async def rest(subscription: Subscription) -> list[str]:
    """The types that wait, until nothing does."""
    found = []
    while True:
        try:
            async with asyncio.timeout(0.05):
                found.append(await anext(subscription))
        except TimeoutError:
            return [json.loads(frame)["type"] for frame in found]


async def test_publish_numbers_stores_and_fans_out(tmp_path: Path) -> None:
    async with running_hub(tmp_path, clock=lambda: 0.25) as hub:
        one, other = hub.subscribe(), hub.subscribe()
        hub.publish("c1", 0, started())
        hub.publish("c2", 0, started())
        hub.publish("c1", 100, speech("u1"))
        hub.publish("c1", 300, partial("u1", 1))
        hub.publish("c1", 900, final("u1"))
        hub.publish("c1", 1000, ended())
        assert hub.event_log.backlog == 5, "publish returns before anything is written"
        events = await take(one, 7)
        assert kinds(events) == [
            "hello", "call.started", "call.started", "speech.started", "transcript.partial", "transcript.final",
            "call.ended",
        ]  # fmt: skip
        assert [event.seq for event in events if event.call_id == "c1"] == [1, 2, 2, 3, 4]
        rows = [int(event.cursor.split(":")[1]) for event in events]
        assert rows == [0, *sorted(rows[1:])]
        assert rows[3] == rows[4], "a partial carries the last cursor"
        assert {event.time for event in events} == {"1970-01-01T00:00:00.250Z"}
        frames = [await anext(other) for _ in range(7)]
        assert [decode(frame) for frame in frames] == events
        assert (hub.published["call.started"], hub.published["dtmf"]) == (2, 0)


async def test_every_subscriber_gets_the_same_string(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        one, other = hub.subscribe(), hub.subscribe()
        hub.publish("c1", 0, started())
        assert (await take(one, 1))[0].cursor == (await take(other, 1))[0].cursor
        assert (await anext(one)) is (await anext(other))


async def test_a_partial_waits_behind_what_is_being_committed(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        subscription = hub.subscribe()
        hub.publish("c1", 0, started())
        hub.publish("c1", 1, partial("u1", 1))
        hub.publish("c1", 2, final("u1"))
        hub.publish("c1", 3, partial("u2", 1))
        assert subscription.waiting == 0
        await hub.flush()
        assert subscription.waiting == 4
        hub.publish("c1", 4, partial("u3", 1))
        assert subscription.waiting == 5, "with nothing to commit before it a partial goes out at once"
        assert [e.at_ms for e in (await take(subscription, 6))[1:]] == [0, 1, 2, 3, 4]


async def test_events_outside_their_call_are_dropped(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        subscription = hub.subscribe()
        hub.publish("c1", 0, partial("u0", 1))
        hub.publish("c1", 0, started())
        hub.publish("c1", 0, ended())
        hub.publish("c1", 0, partial("u1", 1))
        await hub.flush()
        hub.publish("c1", 0, final("u1"))
        assert await rest(subscription) == ["hello", "call.started", "call.ended"]
        assert hub.strays == 3


async def test_hello_is_a_snapshot_at_its_cursor(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        hub.publish(None, 0, EngineState("ready", "moonshine"))
        hub.publish("c1", 0, started())
        hub.publish("c2", 0, started())
        hub.publish("c2", 5, ended())
        hub.publish("c1", 10, CallHeld())
        await hub.flush()
        hub.publish("c1", 20, speech("u1"))  # not committed: not in the snapshot, but after it
        hello, event = await take(hub.subscribe(), 2)
        assert isinstance(hello.body, Hello)
        assert (hello.body.engine.name, hello.body.engine.state) == ("moonshine", "ready")
        assert hello.body.server.startswith("mediaworker/")
        (record,) = hello.body.calls
        assert (record.call_id, record.state, record.seq, record.speaking) == ("c1", "held", 2, [])
        assert (event.call_id, event.seq) == ("c1", 3)
        assert int(event.cursor.split(":")[1]) == int(hello.cursor.split(":")[1]) + 1
        (record,) = (await take(hub.subscribe(), 1))[0].body.calls  # type: ignore[attr-defined]
        assert [s.utterance_id for s in record.speaking] == ["u1"]


async def test_filters(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        hub.publish("c1", 0, started())
        hub.publish("c2", 0, started())
        await hub.flush()
        one = hub.subscribe(call="c1")
        finals = hub.subscribe(types=frozenset({"transcript.final"}))
        hub.publish("c1", 0, speech("u1"))
        hub.publish("c2", 0, final("u2"))
        hub.publish(None, 0, EngineState("idle"))
        hub.publish("c1", 0, final("u1"))
        hello, *events = await take(one, 3)
        assert [record.call_id for record in hello.body.calls] == ["c1"]  # type: ignore[attr-defined]
        assert [(event.call_id, kind) for event, kind in zip(events, kinds(events), strict=True)] == [
            ("c1", "speech.started"),
            ("c1", "transcript.final"),
        ]
        assert await rest(finals) == ["hello", "transcript.final", "transcript.final"]
        start = f"{one.cursor.store_id}:0"
        again = hub.subscribe(call="c1", after=start, types=frozenset({"call.started", "transcript.final"}))
        assert await rest(again) == ["hello", "call.started", "transcript.final"]


async def test_resumption_goes_on_after_the_cursor(tmp_path: Path) -> None:
    count = TAIL + 3 * PAGE + 7  # from the disk, then from memory, then live
    async with running_hub(tmp_path) as hub:
        first = hub.subscribe()
        hub.publish("c1", 0, started())
        after = (await take(first, 2))[1].cursor
        first.close()
        for number in range(count):
            hub.publish("c1", number, digit(number))
            if number % 200 == 0:
                await hub.flush()
        await hub.flush()
        assert len(hub.event_log.tail) == TAIL
        subscription = hub.subscribe(after=after)
        seen = [event.at_ms for event in (await take(subscription, 11))[1:]]
        assert not subscription.live
        for number in range(count, count + 50):
            hub.publish("c1", number, digit(number))
        seen += [event.at_ms for event in await take(subscription, count - 10 + 50)]
        assert seen == list(range(count + 50))
        assert await rest(subscription) == []
        assert subscription.live
        hub.publish("c1", 1, partial("u1", 1))
        assert kinds(await take(subscription, 1)) == ["transcript.partial"]


async def test_resumption_over_a_restart(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        first = hub.subscribe()
        hub.publish("c1", 0, started())
        hub.publish("c1", 1, digit(1))
        hub.publish("c1", 2, digit(2))
        events = await take(first, 4)
        empty = events[0].cursor
    async with running_hub(tmp_path) as hub:
        hub.publish("c2", 0, started())
        for cursor, missing in ((events[2].cursor, 1), (events[3].cursor, 0), (empty, 3)):
            found = await take(hub.subscribe(after=cursor), 1 + missing + 3)
            assert found[1 : 1 + missing] == events[4 - missing :]
            assert kinds(found[1 + missing :]) == ["metrics", "call.ended", "call.started"]


@pytest.mark.parametrize(
    "cursor", ["", ":", "x", "x:1", "{store}:", "{store}:-1", "{store}:1x", "{store}:01", "{store}:9" + "9" * 30,
               "{store}:٣", "{store}:1", "{store}:1:1", "{store}:{next}"],
)  # fmt: skip
async def test_unknown_cursors(tmp_path: Path, cursor: str) -> None:
    async with running_hub(tmp_path) as hub:
        hub.publish("c1", 0, started())
        await hub.flush()
        here = hub.subscribe().cursor
        with pytest.raises(ResumeError) as refused:
            subscription = hub.subscribe(after=cursor.format(store=here.store_id, next=here.row + 1))
            await anext(subscription)
        assert refused.value.code == 4009
        assert hub.subscribers == 0 or hub.subscribe().cursor == here


async def test_a_cursor_that_was_never_stored_is_unknown_after_a_restart(tmp_path: Path) -> None:
    """As after a full disk and a kill: the row was seen, but is not there, and nothing else may take its place."""
    async with running_hub(tmp_path) as hub:
        hub.publish("c1", 0, started())
        hub.publish("c1", 0, ended())
        await hub.flush()
        last = hub.subscribe().cursor
    async with running_hub(tmp_path) as hub:
        hub.publish("c2", 0, started())
        await hub.flush()
        with pytest.raises(ResumeError):
            await anext(hub.subscribe(after=f"{last.store_id}:{last.row + 1}"))
        assert hub.subscribers == 0
        assert len(await take(hub.subscribe(after=str(last)), 2)) == 2


async def test_a_slow_subscriber_loses_partials_and_is_told(tmp_path: Path) -> None:
    async with running_hub(tmp_path, small_queue(16)) as hub:
        hub.publish("c1", 0, started())
        await hub.flush()
        subscription = hub.subscribe()
        await anext(subscription)
        for number in range(40):
            hub.publish("c1", number, partial(f"u{number}", 1))
        assert subscription.waiting == 16
        assert subscription.dropped == 24
        for number in range(10):
            hub.publish("c1", number, digit(number))
        await hub.flush()
        events = await take(subscription, 11)
        assert kinds(events) == ["lagged", *["dtmf"] * 10]
        assert isinstance(events[0].body, Lagged)
        assert events[0].body.dropped_partials == 40
        assert await rest(subscription) == []
        hub.publish("c1", 50, partial("u", 1))
        assert kinds(await take(subscription, 1)) == ["transcript.partial"]
        assert hub.dropped == 40


async def test_of_waiting_partials_the_newest_stays_and_keeps_its_place_in_time(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        hub.publish("c1", 0, started())
        await hub.flush()
        subscription = hub.subscribe()
        hub.publish("c1", 0, partial("u1", 1))
        hub.publish("c1", 0, partial("u2", 1))
        hub.publish("c1", 0, speech("u3"))
        hub.publish("c1", 0, partial("u1", 2))
        hub.publish("c1", 0, Metrics(*METRICS))
        hub.publish("c1", 1, Metrics(*METRICS))
        hub.publish("c1", 0, final("u1"))
        hub.publish("c1", 2, Metrics(*METRICS, durable=True))
        await hub.flush()
        events = (await take(subscription, 7))[1:]
        assert kinds(events) == [
            "transcript.partial", "speech.started", "transcript.partial", "metrics", "transcript.final", "metrics",
        ]  # fmt: skip
        bodies = [event.body for event in events if isinstance(event.body, TranscriptPartial)]
        assert [(body.utterance_id, body.revision) for body in bodies] == [("u2", 1), ("u1", 2)]
        assert [event.at_ms for event in events if isinstance(event.body, Metrics)] == [1, 2]
        assert subscription.dropped == 0


async def test_a_subscriber_that_misses_durable_events_is_closed_and_can_resume(tmp_path: Path) -> None:
    async with running_hub(tmp_path, small_queue(16)) as hub:
        hub.publish("c1", 0, started())
        await hub.flush()
        subscription = hub.subscribe()
        for number in range(5):
            hub.publish("c1", number, digit(number))
        seen = (await take(subscription, 6))[1:]
        for number in range(5, 30):
            hub.publish("c1", number, digit(number))
        await hub.flush()
        with pytest.raises(SubscriptionClosed) as closed:
            await anext(subscription)
        assert closed.value.code == 4008
        assert closed.value.reason == seen[-1].cursor
        assert (hub.subscribers, hub.overruns) == (0, 1)
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)
        seen += (await take(hub.subscribe(after=closed.value.reason), 26))[1:]
        assert [event.at_ms for event in seen] == list(range(30))


async def test_stop_hands_out_what_waits_and_then_ends_subscriptions(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        subscription = hub.subscribe()
        hub.publish("c1", 0, started())
    assert kinds(await take(subscription, 2)) == ["hello", "call.started"]
    with pytest.raises(SubscriptionClosed) as closed:
        await anext(subscription)
    assert closed.value.code == 1001


async def test_close_ends_a_waiting_iteration(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        subscription = hub.subscribe()
        await anext(subscription)
        waiting = asyncio.ensure_future(anext(subscription, None))
        await asyncio.sleep(0)
        subscription.close()
        subscription.close()
        assert await waiting is None
        assert hub.subscribers == 0
        hub.publish("c1", 0, started())
        await hub.flush()
        assert subscription.waiting == 0


@given(st.text(max_size=30))
def test_cursor_parse_raises_nothing_but_event_error(text: str) -> None:
    try:
        assert str(Cursor.parse(text)) == text
    except EventError:
        pass


@given(st.text("abcdef0123456789", min_size=1), st.integers(0, 10**18 - 1))
def test_cursor_parse_and_print_are_inverses(store_id: str, row: int) -> None:
    cursor = Cursor(store_id, row)
    assert Cursor.parse(str(cursor)) == cursor


# -- properties ------------------------------------------------------------------------------------------------------


class NoHistory:
    async def check(self, subscription: Subscription) -> None: ...

    async def page(self, subscription: Subscription) -> list[tuple[int, str]]:
        raise AssertionError("never asked")

    def detach(self, subscription: Subscription) -> None: ...


@given(st.lists(st.sampled_from(["durable", "take", "p1", "p2", "p3", "p4"]), max_size=60), st.integers(1, 6))
def test_a_waiting_room_is_bounded_and_keeps_order(actions: list[str], limit: int) -> None:
    """Against a model: what is taken is a subsequence of what was offered, with every durable event in it."""
    subscription = Subscription(
        NoHistory(), call=None, types=None, limit=limit, hello="hello", cursor=Cursor("s", 0), replay=False,
        lagged=lambda cursor, dropped: f"lagged {dropped}",
    )  # fmt: skip
    subscription.live = True
    offered: list[str] = []
    taken: list[str] = []
    for number, action in enumerate(actions, 1):
        if action == "take":
            if (frame := subscription._pop()) is not None:
                taken.append(frame)
            continue
        frame = f"{action} {number}"
        offered.append(frame)
        durable = action == "durable"
        subscription.offer(Entry(number if durable else None, "c", 0, action, frame, 0.0, None if durable else action))
        assert subscription.waiting <= limit
    while (frame := subscription._pop()) is not None:
        taken.append(frame)
    lagged = sum(int(frame.split()[1]) for frame in taken if frame.startswith("lagged"))
    assert lagged == subscription.dropped
    plain = [frame for frame in taken if frame != "hello" and not frame.startswith("lagged")]
    source = iter(offered)
    assert all(frame in source for frame in plain), "in order, nothing twice"
    if not subscription.overrun:
        assert [f for f in plain if f.startswith("durable")] == [f for f in offered if f.startswith("durable")]
        for key in ("p1", "p2", "p3", "p4"):
            newest = [frame for frame in offered if frame.startswith(key)][-1:]
            assert set(newest) <= set(plain) or subscription.dropped, "the newest partial is kept while there is room"


def talk(chance: random.Random, numbers: Iterator[int]) -> Iterator[tuple[str, EventBody]]:
    """A plausible stream of events of three calls, endless. `numbers` makes names that are new."""
    live: list[str] = []
    while True:
        if len(live) < 3:
            live.append(f"c{next(numbers)}")
            yield live[-1], started()
        call_id, utterance_id = chance.choice(live), f"u{next(numbers)}"
        yield call_id, speech(utterance_id)
        for revision in range(chance.randrange(3)):
            yield call_id, partial(utterance_id, revision)
        yield call_id, final(utterance_id)
        if chance.random() < 0.2:
            live.remove(call_id)
            yield call_id, ended()


@given(st.integers(0, 2**32), st.lists(st.sampled_from("publish flush read leave restart".split()), max_size=40))
def test_a_client_that_comes_and_goes_sees_everything_once(seed: int, actions: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(come_and_go(Path(directory), random.Random(seed), actions))


async def come_and_go(directory: Path, chance: random.Random, actions: list[str]) -> None:
    numbers = itertools.count()
    source = talk(chance, numbers)
    seen: list[tuple[str | None, int]] = []
    cursor: str | None = None
    subscription: Subscription | None = None
    hub: EventHub | None = None

    async def read(count: int) -> None:
        nonlocal cursor, subscription
        assert hub is not None
        subscription = subscription or hub.subscribe(after=cursor)
        for _ in range(count):
            try:
                async with asyncio.timeout(0.02):
                    event = decode(await anext(subscription))
            except TimeoutError:
                return
            except SubscriptionClosed as closed:
                assert closed.code in (1001, 4008)
                subscription = None
                return
            if isinstance(event.body, Hello):
                cursor = cursor or event.cursor
                continue
            cursor = event.cursor
            if not isinstance(event.body, TranscriptPartial | Lagged):
                seen.append((event.call_id, event.seq))

    for run in " ".join(actions).split("restart"):
        async with running_hub(directory, small_queue(16)) as current:
            hub = current
            await read(1)
            for action in run.split():
                if action == "publish":
                    for _ in range(chance.randrange(40)):
                        call_id, body = next(source)
                        hub.publish(call_id, 0, body)
                elif action == "flush":
                    await hub.flush()
                elif action == "read":
                    await read(chance.randrange(30))
                elif subscription is not None:
                    subscription.close()
                    subscription = None
        subscription = None
        source = talk(chance, numbers)  # the calls of the old process are over
    async with running_hub(directory) as current:
        hub = current
        await hub.flush()
        rows = await hub.read(lambda database: database.page(0, 2**62, -1))
        events = [decode(frame) for _, frame in rows]
        async with timeout(30):
            while len(seen) < len(events):
                await read(10**6)
        assert seen == [(event.call_id, event.seq) for event in events]
        finals = [e.body.utterance_id for e in events if isinstance(e.body, TranscriptFinal)]
        begun = [e.body.utterance_id for e in events if e.body.__struct_config__.tag == "speech.started"]
        assert sorted(finals) == sorted(begun)
