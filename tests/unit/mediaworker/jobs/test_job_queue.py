"""Whose job is next: equal shares, nobody idle, nobody forgotten."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mediaworker.files.options import Options
from mediaworker.jobs import queue
from mediaworker.jobs.record import Job, Source


def a_job(number: int, owner: str, not_before_s: float = 0.0) -> Job:
    return Job(f"{number:04}", owner, Source("a.wav", 1), Options(), created_s=0.0, not_before_s=not_before_s)


owners = st.sampled_from("abc")
waiting_jobs = st.lists(st.tuples(owners, st.sampled_from([0.0, 0.0, 5.0, 20.0])), max_size=12)


@given(waiting_jobs, st.lists(owners, max_size=8), st.integers(1, 6), st.integers(1, 4))
def test_turns_are_fair(waits: list[tuple[str, float]], busy: list[str], parallel: int, per_key: int) -> None:
    waiting = [a_job(number, owner, at) for number, (owner, at) in enumerate(waits)]
    running = [a_job(1000 + number, owner) for number, owner in enumerate(busy)]
    chosen = queue.choose(reversed(waiting), running, {}, parallel=parallel, per_key=per_key, now_s=10.0)
    ready = [job for job in waiting if job.not_before_s <= 10.0]
    at_work = Counter(busy)
    for job in chosen:
        # Whoever has the least in work is next, with its oldest.
        free = [other for other in ready if at_work[other.owner] < per_key]
        assert at_work.total() < parallel and job in free
        assert at_work[job.owner] == min(at_work[other.owner] for other in free)
        assert job == min((other for other in free if other.owner == job.owner), key=lambda other: other.id)
        ready.remove(job)
        at_work[job.owner] += 1
    # And nothing stands idle that could be at work.
    assert at_work.total() >= parallel or not [job for job in ready if at_work[job.owner] < per_key]
    later = [job.not_before_s for job in waiting if job.not_before_s > 10.0]
    assert queue.next_s(waiting, 10.0) == min(later, default=None)


@given(st.lists(owners, min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 4), st.randoms())
def test_everybody_has_a_turn(submitted: list[str], parallel: int, per_key: int, random: Random) -> None:
    """Of one key the oldest first, and nobody waits while others have turn after turn."""
    waiting = [a_job(number, owner) for number, owner in enumerate(submitted)]
    running: list[Job] = []
    begun: list[Job] = []
    turns: dict[str, int] = {}
    while waiting or running:
        for job in (chosen := queue.choose(waiting, running, turns, parallel=parallel, per_key=per_key, now_s=0.0)):
            begun.append(job)
            turns[job.owner] = len(begun)
        running += chosen
        waiting = [job for job in waiting if job not in chosen]
        running.pop(random.randrange(len(running)))
    assert len(begun) == len(submitted)
    for owner in set(submitted):
        mine = [job.id for job in begun if job.owner == owner]
        assert mine == sorted(mine)
        # All came at once: before one's first turn no other key has had a second.
        before = Counter(job.owner for job in begun[: begun.index(next(job for job in begun if job.owner == owner))])
        assert all(count == 1 for count in before.values())
