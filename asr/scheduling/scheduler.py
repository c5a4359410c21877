"""Decides which request the engine serves next. Pure: no clock, no audio, no tensors; the caller sets the deadlines.

Rules:
- The lanes are served in this order: final, first partial, partial refresh, speculative final, words, batch. Inside a
  lane of calls (all but batch), the request with the earliest deadline is first.
- A speculative final whose deadline has passed is served right after the finals, because its endpoint is near. Before
  that the speaker may still go on, and the final would be useless, whereas a partial is certain to be used.
- At most one request per utterance waits. A newer revision replaces it. If the lane is the same, the new request keeps
  the earlier deadline, or its place in batch; otherwise an utterance that is refreshed faster than it is served would
  wait for ever.
- In batch the streams take turns, one request each per round. Streams with a waiting client come first.
- `take` hands a request out. It returns through `finish`, or through `put_back` after a bounded step that was not
  enough. Meanwhile it may be superseded or cancelled, so the returned request is valid only while it is the very object
  that was handed out last for its utterance. The order of events never decides.
- Beyond `max_partials`, waiting partials are shed: refreshes before first partials, the oldest first. Finals are never
  shed. The owner sheds requests for words with `shed_words`.
- Workers that share the engine take turns in each lane of calls, and partials of the worker with the most waiting ones
  are shed first. A worker that requests too much delays only itself.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf

from asr.scheduling.request import Lane, Request


@dataclass(slots=True)
class _Queue:
    """The waiting requests of one source in one lane of calls."""

    heap: list[tuple[float, int, str]] = field(default_factory=list)
    """(deadline, ticket, utterance). An entry is dead if the utterance waits with another ticket, or not at all."""
    oldest: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """The waiting utterances in the order in which they joined the queue."""


class Scheduler:
    """The waiting requests, served by the module's rules. An operation costs O(log n) in the waiting requests, and
    O(sources) where several workers share the engine."""

    def __init__(self, *, max_partials: int = 256) -> None:
        assert max_partials > 0
        self.shed_partials = 0
        self._max_partials = max_partials
        self._newest: dict[str, int] = {}
        self._waiting: dict[str, tuple[int, Request]] = {}
        """Utterance → (ticket, request)."""
        self._taken: dict[str, Request] = {}
        """Utterance → the request that `take` has handed out and that is still valid."""
        self._queues: dict[Lane, OrderedDict[str, _Queue]] = {
            lane: OrderedDict() for lane in Lane if lane is not Lane.BATCH
        }
        """Lane of calls → source → its queue; sources are in the order of their turns."""
        self._turns: tuple[OrderedDict[str, OrderedDict[str, None]], ...] = (OrderedDict(), OrderedDict())
        """The batch lane, for streams with a waiting client and for others: stream → its utterances. Streams are in the
        order of their turns."""
        self._tickets = 0

    def __len__(self) -> int:
        """The number of requests that wait or are being served."""
        return len(self._waiting) + len(self._taken)

    def waiting(self, lane: Lane) -> int:
        return sum(request.lane is lane for _, request in self._waiting.values())

    def final_due(self, now_s: float) -> bool:
        """Whether a final waits, or a speculative one whose deadline has passed."""
        waiting = (request for _, request in self._waiting.values())
        return any(
            each.lane is Lane.FINAL or (each.lane is Lane.SPECULATIVE and each.deadline_s <= now_s) for each in waiting
        )

    def pending(self, utterance_id: str) -> bool:
        """Whether the utterance's newest request has not been answered yet."""
        return utterance_id in self._waiting or utterance_id in self._taken

    def submit(self, request: Request) -> bool:
        """Queue a request. Returns False if it is stale, because the utterance has submitted a newer one already."""
        name = request.utterance_id
        if request.revision <= self._newest.get(name, -1):
            return False
        self._newest[name] = request.revision
        taken = self._taken.pop(name, None)
        _, old = self._waiting.get(name, (0, taken))
        same = old is not None and old.lane is request.lane
        if old is not None and same:
            request = replace(request, deadline_s=min(request.deadline_s, old.deadline_s))
        assert old is None or (old.stream, old.synchronous) == (request.stream, request.synchronous)
        if not same or request.lane is not Lane.BATCH:
            self._remove(name)
        self._put(request, again=same and taken is not None)
        self._shed()
        return True

    def take(
        self,
        limit: int = 1,
        *,
        now_s: float = inf,
        lanes: tuple[Lane, ...] = tuple(Lane),
        runnable: Callable[[Request], bool] = lambda request: True,
    ) -> list[Request]:
        """Hand out up to `limit` requests, the most urgent first. Those that are not `runnable` now keep their places.

        `now_s`: speculative finals with a deadline up to this time are served right after the finals.
        """
        taken: list[Request] = []
        for lane in lanes:
            if lane is Lane.BATCH:
                taken += self._take_batch(limit - len(taken), runnable)
                continue
            taken += self._take_call(lane, limit - len(taken), runnable)
            if lane is Lane.FINAL and Lane.SPECULATIVE in lanes:
                taken += self._take_call(Lane.SPECULATIVE, limit - len(taken), runnable, until_s=now_s)
        for request in taken:
            self._taken[request.utterance_id] = request
        return taken

    def put_back(self, request: Request) -> None:
        """Queue a request again that needs a further step; nothing happens if it has been superseded meanwhile."""
        if self._taken.get(request.utterance_id) is request:
            del self._taken[request.utterance_id]
            self._put(request, again=True)

    def shed(self, request: Request) -> None:
        """Drop a partial that was handed out; nothing happens if it has been superseded meanwhile."""
        if self._taken.get(request.utterance_id) is request:
            del self._taken[request.utterance_id]
            self.shed_partials += 1

    def shed_words(self, most: int) -> list[Request]:
        """Drop the oldest requests for words of calls beyond this many, and return them: each must be answered."""
        return self._oldest_beyond(most, Lane.WORDS)

    def withdraw(self, utterance_id: str) -> None:
        """Drop the newest request, whose answer nobody needs any more; the utterance goes on."""
        self._remove(utterance_id)
        self._taken.pop(utterance_id, None)

    def finish(self, request: Request) -> bool:
        """The engine has answered the request. Returns False if the answer is stale and must be dropped."""
        if self._taken.get(request.utterance_id) is not request:
            return False
        del self._taken[request.utterance_id]
        return True

    def forget(self, utterance_id: str) -> None:
        """The utterance is over: drop its request."""
        self.withdraw(utterance_id)
        self._newest.pop(utterance_id, None)

    # -- lanes of calls ---------------------------------------------------------------------------------------------

    def _put(self, request: Request, *, again: bool = False) -> None:
        self._tickets += 1
        name = request.utterance_id
        self._waiting[name] = (self._tickets, request)
        if request.lane is Lane.BATCH:
            queue = self._turns[not request.synchronous].setdefault(request.stream or name, OrderedDict())
            queue[name] = None
            if again:  # an utterance that was begun goes on first, because the engine holds state for it
                queue.move_to_end(name, last=False)
            return
        waiting = self._queues[request.lane].setdefault(request.source, _Queue())
        heappush(waiting.heap, (request.deadline_s, self._tickets, name))
        waiting.oldest[name] = None

    def _take_call(
        self, lane: Lane, limit: int, runnable: Callable[[Request], bool], *, until_s: float = inf
    ) -> list[Request]:
        """Take up to `limit` requests of a lane whose deadline is not after `until_s`; sources take turns."""
        queues = self._queues[lane]
        turns = deque(queues.items())
        taken: list[Request] = []
        aside: list[tuple[_Queue, tuple[float, int, str]]] = []
        while turns and len(taken) < limit:
            source, queue = turns.popleft()
            while queue.heap and queue.heap[0][0] <= until_s:
                entry = heappop(queue.heap)
                ticket, request = self._waiting.get(entry[2], (0, None))
                if request is None or ticket != entry[1]:
                    continue
                if not runnable(request):
                    aside.append((queue, entry))
                    continue
                queues.move_to_end(source)
                self._remove(entry[2])
                taken.append(request)
                turns.append((source, queue))
                break
        for queue, entry in aside:
            heappush(queue.heap, entry)
        return taken

    def _remove(self, name: str) -> Request | None:
        """Remove and return the utterance's waiting request. Its heap entry is dead from then on."""
        _, request = self._waiting.pop(name, (0, None))
        if request is None:
            return None
        if request.lane is Lane.BATCH:
            turns, stream = self._turns[not request.synchronous], request.stream or name
            del turns[stream][name]
            if not turns[stream]:
                del turns[stream]
        else:
            queues = self._queues[request.lane]
            waiting = queues[request.source]
            del waiting.oldest[name]
            if waiting.oldest:
                self._sweep(waiting)
            else:
                del queues[request.source]
        return request

    def _sweep(self, queue: _Queue) -> None:
        """Remove dead heap entries once they are more than half. `_take_call` drops them only when they reach the top,
        so they would accumulate in a lane that more urgent ones keep waiting."""
        if len(queue.heap) > 2 * len(queue.oldest):
            queue.heap[:] = [entry for entry in queue.heap if self._waiting.get(entry[2], (0, None))[0] == entry[1]]
            heapify(queue.heap)

    def _shed(self) -> None:
        self.shed_partials += len(self._oldest_beyond(self._max_partials, Lane.PARTIAL, Lane.FIRST_PARTIAL))

    def _oldest_beyond(self, most: int, *lanes: Lane) -> list[Request]:
        """Remove and return requests of these lanes until no more than `most` wait: the oldest of the first lane first,
        and those of the source with the most waiting ones."""
        queues = [self._queues[lane] for lane in lanes]
        removed: list[Request] = []
        while sum(len(queue.oldest) for each in queues for queue in each.values()) > most:
            waiting = {source: 0 for each in queues for source in each}
            for each in queues:
                for source, queue in each.items():
                    waiting[source] += len(queue.oldest)
            longest = max(waiting, key=waiting.__getitem__)
            queue = next(each[longest] for each in queues if longest in each)
            request = self._remove(next(iter(queue.oldest)))
            assert request is not None
            removed.append(request)
        return removed

    # -- batch ------------------------------------------------------------------------------------------------------

    def _take_batch(self, limit: int, runnable: Callable[[Request], bool]) -> list[Request]:
        taken: list[Request] = []
        for turns in self._turns:
            streams = list(turns)
            while streams:  # each round visits the streams that had a request in the round before
                streams = [stream for stream in streams if stream in turns]
                round_ = []
                for stream in streams:
                    if len(taken) >= limit:
                        return taken
                    waiting = (self._waiting[name][1] for name in turns[stream])
                    request = next((each for each in waiting if runnable(each)), None)
                    if request is not None:
                        turns.move_to_end(stream)
                        self._remove(request.utterance_id)
                        taken.append(request)
                        round_.append(stream)
                streams = round_
        return taken
