"""What subscribers hear of a call that another worker has ended, and of a worker that has stood still."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from config import Settings
from mediaworker.cluster.cursors import closer_of
from mediaworker.cluster.events import ClusterEvents
from mediaworker.cluster.own_calls import lost
from mediaworker.cluster.own_events import OwnEvents
from mediaworker.events.frame import decode, encode
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import (
    CallEnded,
    CallStarted,
    Event,
    EventBody,
    SpeechEnded,
    SpeechStarted,
    TranscriptFinal,
    type_of,
)
from mediaworker.events.store import EventStore
from mediaworker.events.subscription import Cursor, Entry, SubscriptionClosed

STARTED = CallStarted("sip", "inbound", "1", "2", "x", [], {})
STARTS = SpeechStarted("main", "main/1", 0)
FINAL = TranscriptFinal("main", "caller", "main/1", 2, 0, 10, "one", 3, "en", 0, 0, "endpoint")


async def no_answer() -> object:
    """Nobody has ended a call."""


class World:
    """A worker whose events reach the stream when a test says so, and a subscriber of it."""

    def __init__(self, folder: Path) -> None:
        self.hub = EventHub(Settings(), EventStore(folder / "own"))
        self.ask = no_answer
        """What the cluster answers a worker that has stood still."""
        store = EventStore(folder / "cluster")
        self.events = ClusterEvents(Settings(), store, self.hub, ask=lambda: self.ask(), prompt=lambda: False)
        self.heard: list[Event] = []
        self.told: list[str] = []
        """Frames that the stream has not taken."""
        self.messages = 0

    def hear(self, event: EventBody) -> None:
        self.hub.publish("call", 0, event)

    async def stream_takes(self) -> None:
        """What the worker has told until now."""
        await self.hub.flush()
        await self._receive(self.told)
        self.told = []

    async def another_worker_ends_it(self) -> None:
        """As far as the stream knows it."""
        record, closer = self.events._latest["call"], closer_of(self.events.own)
        await self._receive([encode(each) for each in lost(record, [], lambda number: Cursor(closer, number))])

    async def _receive(self, frames: list[str]) -> None:
        self.messages += 1
        self.events.receive(self.messages, "\n".join(frames).encode())
        await self.events.flush()
        await asyncio.gather(*self.events._ending)

    async def follow(self) -> None:
        async for frame in self.events.subscribe():
            self.heard.append(decode(frame))

    @property
    def story(self) -> list[tuple[int, str]]:
        return [(each.seq, type_of(each.body)) for each in self.heard if each.call_id == "call"]


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    made = World(folder)
    await made.hub.start()
    await made.events.start("stream")
    made.hub.on_shown.append(lambda entry: made.told.append(entry.frame))
    following = asyncio.create_task(made.follow())
    await asyncio.sleep(0)
    made.hear(STARTED)
    made.hear(STARTS)
    await made.stream_takes()
    yield made
    await made.events.stop()
    await made.hub.stop()
    with contextlib.suppress(SubscriptionClosed):
        await following


BEGUN = [(1, "call.started"), (2, "speech.started")]
CLOSED = ["speech.ended", "transcript.final", "metrics", "call.ended"]


async def test_an_end_by_another_worker_is_the_last_that_is_heard(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        await call.another_worker_ends_it()
        assert call.events.own_calls.ended_elsewhere("call") and not call.events.calls
        call.hear(SpeechEnded("main", "main/1", 10))
        call.hear(CallEnded("hangup", 10, []))
        await call.stream_takes()
    assert call.story == [*BEGUN, *enumerate(CLOSED, start=3)]


async def test_a_call_that_ends_while_its_worker_asks_ends_once(tmp_path: Path) -> None:
    """It stood still, another worker has ended the call, and the caller has hung up as well."""
    async with world(tmp_path) as call:
        answered = asyncio.Event()

        async def ask() -> None:
            await call.another_worker_ends_it()
            await answered.wait()

        call.ask = ask
        call.events.own_events._beat_s -= 5
        call.hear(SpeechEnded("main", "main/1", 10))
        call.hear(CallEnded("hangup", 10, []))
        await call.hub.flush()
        assert call.hub.call("call") is None and call.story == BEGUN
        answered.set()
        await asyncio.sleep(0.05)
        await call.stream_takes()
    assert call.story == [*BEGUN, *enumerate(CLOSED, start=3)]


async def test_what_waits_while_the_stream_has_it_is_told_once(tmp_path: Path) -> None:
    """It stood still, and had its calls all the time."""
    async with world(tmp_path) as call:
        answered = asyncio.Event()
        call.ask = answered.wait
        call.events.own_events._beat_s -= 5
        call.hear(SpeechEnded("main", "main/1", 10))
        await call.stream_takes()
        call.hear(FINAL)
        await call.hub.flush()
        answered.set()
        await asyncio.sleep(0.05)
        late = call.events.subscribe(after="stream:0")
        told = [type_of(decode(await anext(late)).body) for _ in range(5)]
        await call.stream_takes()
        call.hear(CallEnded("hangup", 10, []))
        told.append(type_of(decode(await anext(late)).body))
    more = ["speech.ended", "transcript.final", "call.ended"]
    assert told == ["hello", "call.started", "speech.started", *more] == ["hello", *(kind for _, kind in call.story)]


async def test_who_has_heard_more_hears_an_end_behind_it(tmp_path: Path) -> None:
    """It was cut off: its subscribers have heard what the others have not."""
    async with world(tmp_path) as call:
        call.hear(SpeechEnded("main", "main/1", 10))
        call.hear(FINAL)
        call.hear(SpeechStarted("main", "main/2", 20))
        await call.hub.flush()
        await call.another_worker_ends_it()
        call.hear(CallEnded("hangup", 10, []))
        await call.stream_takes()
        late = call.events.subscribe(after="stream:0")
        again = [decode(await anext(late)) for _ in range(7)]
    more = ["speech.ended", "transcript.final", "speech.started", *CLOSED]
    assert call.story == [*BEGUN, *enumerate(more, start=3)]
    finals = [each.body for each in call.heard if isinstance(each.body, TranscriptFinal)]
    assert [(each.utterance_id, each.reason) for each in finals] == [("main/1", "endpoint"), ("main/2", "failed")]
    assert [type_of(each.body) for each in again[1:]] == ["call.started", "speech.started", *CLOSED], "as all know it"


@pytest.mark.parametrize("damage", ["'{'", """replace(json, '"leg":"main"', '"leg":1')"""])
async def test_a_damaged_event_keeps_no_call_open(tmp_path: Path, damage: str) -> None:
    """One of those that the worker has in its own store."""
    async with world(tmp_path) as call:
        call.hear(SpeechEnded("main", "main/1", 10))
        call.hear(FINAL)
        call.hear(SpeechStarted("main", "main/2", 20))
        await call.hub.flush()
        await call.hub.store.write(
            lambda database: database.execute(f"UPDATE events SET json = {damage} WHERE seq = 5")
        )
        await call.another_worker_ends_it()
    assert [kind for _, kind in call.story[5:]] == CLOSED


async def test_an_end_comes_too_late_for_a_call_that_has_ended(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        call.hear(SpeechEnded("main", "main/1", 10))
        call.hear(FINAL)
        call.hear(CallEnded("hangup", 10, []))
        await call.hub.flush()
        await call.another_worker_ends_it()
    assert call.story == [*BEGUN, *enumerate(["speech.ended", "transcript.final", "call.ended"], start=3)]


def entry(seq: int) -> Entry:
    return Entry(seq, "call", seq, "speech.started", "{}", 0.0)


def spoken(seq: int) -> Entry:
    """A partial behind that event."""
    return Entry(None, "call", seq, "transcript.partial", "{}", 0.0, replaces="u")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("answers", [True, False])
async def test_events_wait_after_a_standstill_until_there_is_an_answer(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mediaworker.cluster.own_events.ASK_S", 0.05)
    shown: list[int] = []
    clock, answer = Clock(), asyncio.Event()
    asked: list[float] = []

    async def ask() -> None:
        asked.append(clock.now)
        await answer.wait()

    events = OwnEvents(lambda each: shown.append(each.seq), ask, lambda: False, clock=clock)
    events.take(entry(1))
    clock.now += 3.9
    events.take(entry(2))
    assert shown == [1, 2]
    clock.now += 4.1
    events.take(entry(3))
    events.take(entry(4))
    assert shown == [1, 2]
    if answers:
        answer.set()
    while len(shown) < 4:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert shown == [1, 2, 3, 4] and asked == [108.0], "in their order, asked once"
    events.take(entry(5))
    assert shown[-1] == 5
    events.stop()


async def test_an_event_is_shown_when_nats_has_been_sent_it() -> None:
    shown: list[tuple[int | None, int]] = []
    prompt = False
    events = OwnEvents(lambda each: shown.append((each.row, each.seq)), no_answer, lambda: prompt)
    events.take(spoken(0))
    events.take(entry(1))
    assert shown == [(None, 0), (1, 1)], "NATS is away"
    prompt = True
    events.take(spoken(1))
    assert shown[2:] == [(None, 1)] and not events.waiting
    for each in (entry(2), spoken(2), entry(3), spoken(3)):
        events.take(each)
    assert len(shown) == 3 and events.waiting
    events.on_written(2)
    assert shown[3:] == [(2, 2), (None, 2)] and events.waiting, "partials keep their place"
    events.on_written(3)
    assert shown[5:] == [(3, 3), (None, 3)] and not events.waiting
    events.take(entry(4))
    events.stop()
    assert shown[7:] == [(4, 4)], "the last are told, too"


async def test_an_event_waits_for_nats_no_longer_than_a_moment() -> None:
    shown: list[int] = []
    events = OwnEvents(lambda each: shown.append(each.seq), no_answer, lambda: True)
    events.take(entry(1))
    events.take(entry(2))
    while events.waiting:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert shown == [1, 2]
    events.take(entry(3))
    events.on_written(3)
    events.take(entry(4))
    assert shown == [1, 2, 3], "the next one has a moment of its own"
    events.stop()


async def test_what_waits_for_nats_waits_for_an_answer_after_a_standstill() -> None:
    shown: list[int] = []
    clock, answer = Clock(), asyncio.Event()
    events = OwnEvents(lambda each: shown.append(each.seq), answer.wait, lambda: True, clock=clock)
    events.take(entry(1))
    clock.now += 4.1
    events.take(entry(2))
    events.on_written(2)
    events.on_written(math.inf)  # the moment is over
    assert shown == []
    answer.set()
    while events.waiting:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert shown == [1, 2]
