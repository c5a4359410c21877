"""Which jobs run next. Pure.

Keys have equal shares: the key with the fewest running jobs is next, then the one whose last turn is longest ago, and
within a key the oldest job. Running jobs take turns in the engine, segment by segment, so that a voicemail beside three
films is done in a moment.
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
    """Those of `waiting` to begin now, in this order, beside the `running` ones.

    Args:
        turns: key → the number of its last turn, which grows from turn to turn.
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
    """Unix time at which one that is put off may begin; None when none is."""
    return min((job.not_before_s for job in waiting if job.not_before_s > now_s), default=None)
