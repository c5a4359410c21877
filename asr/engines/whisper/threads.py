"""Makes the calls of many answers in a few threads, the most urgent first.

A call takes between a tenth and half a second and cannot be interrupted. So the engine's own thread makes none: it
gives each free thread the next call of the most urgent answer, and is back in time for something more urgent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from asr.engines.interface import Answer
from asr.engines.whisper.model import Call
from asr.engines.whisper.session import Answering
from asr.scheduling.request import Request

REMEMBERED_S = 5.0
"""The time constant of the load."""


@dataclass(slots=True, eq=False)
class Job:
    """An answer on its way."""

    request: Request
    answering: Answering
    call: Any = None
    """The call that it needs next; None while a thread makes it, and when there is an answer."""
    answer: Answer | None = None
    error: Exception | None = None
    """Why there will be no answer."""

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None

    def send(self, result: Any) -> None:
        """Go on with the result of the call, up to the next call or the answer."""
        try:
            self.call = self.answering.send(result)
        except StopIteration as end:
            self.call, self.answer = None, end.value


class CallThreads:
    """The threads, and what is under way in them. One thread uses it.

    Args:
        perform: makes calls that `together` allows to be made at once, and returns their results.
        most: the most calls that are made at once.
    """

    def __init__(
        self,
        threads: int,
        perform: Callable[[Sequence[Any]], list[Any]],
        together: Callable[[Any, Any], bool],
        *,
        most: int = 1,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, "whisper")
        self._threads, self._most = threads, most
        self._perform, self._together = perform, together
        self._running: dict[Future[list[Any]], tuple[list[Job], float]] = {}
        """The jobs that each call is made for, and when it was begun."""
        self._busy_s, self._busy_at_s = 0.0, 0.0

    @property
    def free(self) -> int:
        return self._threads - len(self._running)

    def under_way(self) -> frozenset[str]:
        """The utterances about which a call is being made."""
        return frozenset(job.request.utterance_id for jobs, _ in self._running.values() for job in jobs)

    def load(self, now_s: float) -> float:
        """The part of the threads' time that was used lately."""
        return self._faded_s(now_s) / (REMEMBERED_S * self._threads)

    def _faded_s(self, now_s: float) -> float:
        """How long calls took lately, each the less the longer ago it ended."""
        return self._busy_s * math.exp((self._busy_at_s - now_s) / REMEMBERED_S)

    def start(self, jobs: Iterable[Job]) -> None:
        """Give the free threads the calls of these jobs, of which the most urgent is first."""
        waiting = [job for job in jobs if isinstance(job.call, Call)]
        while waiting and self.free:
            first, *waiting = waiting
            group = [first, *[job for job in waiting if self._together(first.call, job.call)][: self._most - 1]]
            waiting = [job for job in waiting if job not in group]
            calls = [job.call for job in group]
            for job in group:
                job.call = None
            self._running[self._pool.submit(self._perform, calls)] = group, time.perf_counter()

    def wait(self, seconds: float) -> None:
        """Wait until a call has ended, for so many seconds at most, and go on with the jobs that it was made for."""
        ended, _ = wait(self._running, seconds, FIRST_COMPLETED)
        now_s = time.perf_counter()
        for future in ended:
            group, begun_s = self._running.pop(future)
            self._busy_s, self._busy_at_s = self._faded_s(now_s) + now_s - begun_s, now_s
            try:
                results = future.result()
            except Exception as error:  # an error of the network, or of ours: it belongs to these answers
                for job in group:
                    job.error = error
                continue
            for job, result in zip(group, results, strict=True):
                job.send(result)
