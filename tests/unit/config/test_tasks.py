"""Background tasks end, also those that have lost a cancellation."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from config.process import tasks
from lab.patience import timeout, wait_for


async def test_a_lost_cancellation_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.02)
    lost = 0

    async def careless() -> None:
        nonlocal lost
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            lost += 1
            if lost == 3:
                raise ValueError("it is over")

    async def plain() -> None:
        await asyncio.sleep(60)

    async def over() -> int:
        return 1

    running = [asyncio.create_task(each()) for each in (careless, plain, over)]
    await asyncio.sleep(0)
    async with timeout(5):
        await tasks.end_tasks(*running)
    assert lost == 3 and [task.done() for task in running] == [True] * 3 and running[1].cancelled()


async def test_a_cancellation_that_meets_the_answer_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.wait_for` of Python 3.11 returns the answer then, and its caller goes on."""
    monkeypatch.setattr(tasks, "AGAIN_S", 0.02)
    answer = asyncio.get_running_loop().create_future()

    async def asks_for_ever() -> None:
        await wait_for(answer, 60)
        await asyncio.sleep(60)

    task = asyncio.create_task(asks_for_ever())
    await asyncio.sleep(0)
    answer.set_result(None)
    async with timeout(5):
        await tasks.end_tasks(task)
    assert task.cancelled()


async def test_what_is_cancellable_ends_at_a_cancellation_that_was_lost_in_it() -> None:
    reached: list[str] = []

    async def asks(answer: asyncio.Future[None]) -> None:
        with tasks.cancellable():
            await wait_for(answer, 60)
        reached.append("behind")
        await asyncio.sleep(60)

    for cancelled in (True, False):
        answer = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(asks(answer))
        await asyncio.sleep(0)
        answer.set_result(None)
        if cancelled:
            task.cancel()
            await asyncio.wait([task], timeout=5)
            assert task.cancelled() and reached == []
        else:
            await asyncio.sleep(0.01)
            assert reached == ["behind"]
            task.cancel()


async def test_whoever_is_cancelled_meanwhile_waits_all_the_same() -> None:
    """As in a scope of anyio, which cancels at each `await`: a generator must have ended before it is closed."""
    cleaned: list[str] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(3):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            cleaned.append("all")

    task = asyncio.create_task(slow_to_end())
    await asyncio.sleep(0)
    ending = asyncio.create_task(tasks.end_tasks(task))
    for _ in range(2):
        await asyncio.sleep(0)
        ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert cleaned == ["all"] and task.done()


async def test_what_lasts_goes_on_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is counted and told, first as a warning, then as a reason not to be ready."""
    monkeypatch.setattr(tasks, "LEAST_S", 0.001)
    begun, second, over = 0, asyncio.Event(), asyncio.Event()

    async def faulty() -> None:
        nonlocal begun
        begun += 1
        if begun == 2:
            await second.wait()
        if begun == 4:
            raise asyncio.CancelledError  # a library's own: nobody has asked this task to end
        if begun < 6:
            raise RecursionError("nested too deeply")
        over.set()
        await asyncio.sleep(60)

    before = tasks.faults["faulty"]
    task = tasks.lasting(faulty, "faulty")
    async with timeout(5):
        while begun < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    (told,) = tasks.troubles(stuck=False)
    assert "faulty has failed" in told and "nested" not in told, "the text of an error may be a stranger's"
    second.set()
    async with timeout(5):
        await over.wait()
    assert tasks.faults["faulty"] == before + 5
    assert [tasks.troubles(stuck=False), len(tasks.troubles(stuck=True))] == [[], 1]
    monkeypatch.setattr(tasks, "SOUND_S", 0.0)
    assert not tasks.troubles(stuck=True), "it has been sound for long enough"
    await tasks.end_tasks(task)
    assert task.cancelled()


async def test_what_ends_by_itself_is_not_begun_again() -> None:
    begun = 0

    async def brief() -> None:
        nonlocal begun
        begun += 1

    await tasks.lasting(brief, "brief")
    assert begun == 1 and not tasks.troubles(stuck=False)
