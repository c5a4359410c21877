"""Chooses the jobs that run next. No I/O.

Keys have equal shares: the next job is one of the key with the fewest running jobs, then of the key that started a job
the longest time ago, and within a key the oldest job. The engine alternates between running jobs, segment by segment,
so that a voicemail does not wait for three films.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from mediaworker.jobs.record import Job


def choose(
    waiting: Iterable[Job],
    running: Iterable[Job],
    turns: Mapping[str, int],
    *,
    parallel: int,
    per_key: int,
    now_s: float,
) -> list[Job]:
    """Return the jobs of `waiting` to start now, in this order, beside the `running` ones.

    Args:
        turns: for each key the number of its latest start; the numbers grow from start to start.
    """
    at_work = Counter(job.owner for job in running)
    ready = sorted((job for job in waiting if job.not_before_s <= now_s), key=lambda job: job.id)
    chosen: list[Job] = []
    while at_work.total() < parallel:
        free = [job for job in ready if at_work[job.owner] < per_key]
        if not free:
            break
        following = min(free, key=lambda job: (at_work[job.owner], turns.get(job.owner, 0), job.id))
        ready.remove(following)
        at_work[following.owner] += 1
        chosen.append(following)
    return chosen


def next_s(waiting: Iterable[Job], now_s: float) -> float | None:
    """Return the Unix time at which the next job that is put off may start; None when there is none."""
    return min((job.not_before_s for job in waiting if job.not_before_s > now_s), default=None)
