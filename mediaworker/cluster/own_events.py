"""This worker's own events on their way to its subscribers.

Each waits until NATS has been sent it, for some milliseconds and no longer: whatever happens to this worker then, the
others know what its subscribers know, and go on from there. While NATS is away nothing waits.

All wait after the worker has stood still. A process that was stopped, or whose machine was, finds out late that another
worker has ended its calls. What it says of them until then would contradict what everybody else knows.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import structlog

from config.tasks import within
from mediaworker.events.subscription import Entry

HOLD_S = 0.02
"""An event waits no longer to be sent to NATS."""
BEAT_S = 0.5
STILL_S = 4.0
"""Whoever has not run for so long may find its calls ended. A lease lasts longer."""
ASK_S = 5.0
"""Events wait so long for an answer of the cluster: if it cannot be reached, nobody waits for it any more."""
ROOM = 20_000
"""Events that `EarlyEvents` keeps."""
log = structlog.get_logger("cluster")


class OwnEvents:
    """See the module.

    Args:
        ask: finds out whether another worker has ended calls of this one.
        prompt: whether NATS will be sent an event of now within milliseconds, as `on_written` will tell.
    """

    def __init__(
        self,
        show: Callable[[Entry], None],
        ask: Callable[[], Awaitable[object]],
        prompt: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show, self._ask, self._prompt, self._clock = show, ask, prompt, clock
        self._beat_s = clock()
        self._beat: asyncio.TimerHandle | None = None
        self._waiting: deque[Entry] = deque()
        self._limit: asyncio.TimerHandle | None = None
        """Set while events wait for NATS."""
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._beat_s = self._clock()
        self._go_on()

    def stop(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        if self._asking is not None:
            self._asking.cancel()
        self.on_written(math.inf)

    @property
    def waiting(self) -> bool:
        return self._asking is not None or bool(self._waiting)

    def take(self, entry: Entry) -> None:
        """The worker's own hub has stored and shown it."""
        self.check()
        if self.waiting:
            self._waiting.append(entry)
        elif entry.row is not None and entry.call_id is not None and self._prompt():
            self._waiting.append(entry)
            self._limit = asyncio.get_running_loop().call_later(HOLD_S, self.on_written, math.inf)
        else:
            self._show(entry)

    def on_written(self, row: float) -> None:
        """NATS has been sent all events up to this row of the worker's own store, or they wait for it no longer."""
        if self._asking is not None:
            return
        while self._waiting and (self._waiting[0].row or 0) <= row:
            self._show(self._waiting.popleft())
        if not self._waiting and self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def check(self) -> None:
        """Ask, if the worker has stood still until now."""
        now_s = self._clock()
        still_s, self._beat_s = now_s - self._beat_s, now_s
        if still_s > STILL_S and self._asking is None:
            log.warning("this worker stood still: it asks whether it still has its calls", seconds=round(still_s, 1))
            self._asking = asyncio.get_running_loop().create_task(self._settle(), name="cluster-ask")

    def _go_on(self) -> None:
        self.check()
        self._beat = asyncio.get_running_loop().call_later(BEAT_S, self._go_on)

    async def _settle(self) -> None:
        try:
            async with within(ASK_S):
                await self._ask()
        finally:
            self._asking = None
            self.on_written(math.inf)


class EarlyEvents:
    """Own events that were shown before the stream had them, for those who subscribe meanwhile. No I/O."""

    def __init__(self) -> None:
        self.lost = False
        """Some have gone for want of room since the stream had all."""
        self._entries: dict[int, Entry] = {}
        """By their rows in this worker's own store."""
        self._late: set[int] = set()
        """Rows of those that the stream had before they were shown."""

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        return iter(self._entries.items())

    def put(self, row: int, entry: Entry) -> None:
        """It is shown."""
        if row in self._late:
            return
        self._entries[row] = entry
        if len(self._entries) > ROOM:
            self._entries.pop(next(iter(self._entries)))
            self.lost = True

    def stored(self, row: int, *, waiting: bool) -> None:
        """It has come from the stream. `waiting`: own events wait just now (`own_events`), perhaps this one too."""
        if not waiting:
            self._late.clear()
        if self._entries.pop(row, None) is None and waiting:
            self._late.add(row)
        if not self._entries:
            self.lost = False

    def forget(self, call_id: str) -> None:
        """Another worker has ended the call: what was shown of it here, nobody is told any more."""
        self._entries = {row: entry for row, entry in self._entries.items() if entry.call_id != call_id}
