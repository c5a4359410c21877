"""What subscribers hear of a call that another worker has ended, and of a worker that has stood still."""

from __future__ import annotations

import asyncio

import pytest

from mediaworker.cluster.own_calls import OwnCalls
from mediaworker.cluster.own_events import OwnEvents
from mediaworker.events.subscription import Entry


def entry(seq: int, type_: str = "speech.started", *, row: bool = True) -> Entry:
    return Entry(seq if row else None, "call", seq, type_, "{}", 0.0)


def test_an_end_by_another_worker_is_the_last_that_is_heard() -> None:
    calls = OwnCalls()
    assert calls.shows(entry(1)) and calls.shows(entry(2))
    assert not calls.ended_elsewhere("call")
    assert calls.shows_end(entry(3, "metrics"), live=True) and calls.shows_end(entry(4, "call.ended"), live=True)
    assert calls.ended_elsewhere("call")
    assert not any(calls.shows(entry(seq, row=durable)) for seq, durable in ((3, True), (3, False), (4, True)))
    assert not calls.shows(entry(5, "call.ended"))
    assert not calls.ended_elsewhere("call"), "nothing is kept of it"


def test_who_has_heard_more_hears_the_call_to_its_own_end() -> None:
    calls = OwnCalls()
    assert all(calls.shows(entry(seq)) for seq in (1, 2, 3))
    assert not calls.shows_end(entry(3, "metrics"), live=True)
    assert not calls.shows_end(entry(4, "call.ended"), live=True), "also of the events behind"
    assert not calls.ended_elsewhere("call")
    assert calls.shows(entry(4)) and calls.shows(entry(5, "call.ended"))


def test_an_end_comes_too_late_for_a_call_that_has_ended() -> None:
    calls = OwnCalls()
    assert calls.shows(entry(1)) and calls.shows(entry(2, "call.ended"))
    assert not calls.shows_end(entry(2, "metrics"), live=False)
    assert calls.shows_end(entry(3, "transcript.final"), live=False), "a restart has not told its end here"


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
    events = OwnEvents(lambda each: shown.append(each.seq), clock=clock)
    asked: list[float] = []

    async def ask() -> None:
        asked.append(clock.now)
        await answer.wait()

    events.ask = ask
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
