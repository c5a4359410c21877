"""The gate through which this worker's own events reach its subscribers.

Each event waits until it has been sent to NATS, for a few milliseconds at most. If this worker dies then, the other
workers know everything that its subscribers have seen, and continue from there. While NATS cannot be reached, no event
waits.

All events wait after the worker has been suspended. A suspended process, or one on a suspended machine, learns late
that another worker has ended its calls. Events that it showed until then would contradict the rest of the cluster.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import structlog

from config.process.tasks import within
from mediaworker.events.subscription import Entry

HOLD_S = 0.02
"""The longest time that an event waits to be sent to NATS."""
BEAT_S = 0.5
STILL_S = 4.0
"""A worker that has not run for this long may find its calls ended. It is shorter than a lease lasts."""
ASK_S = 5.0
"""The longest time that events wait for the cluster's answer after a suspension; then they are shown."""
ROOM = 20_000
"""The most events that `EarlyEvents` keeps."""
log = structlog.get_logger("cluster")


class OwnEvents:
    """Delays own events as the module describes.

    Args:
        ask: finds out whether another worker has ended calls of this one.
        prompt: whether an event of now will be sent to NATS within milliseconds, which `on_written` then reports.
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
        """The timer of HOLD_S, set while events wait for NATS."""
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
        """Accept an event that the worker's own hub has stored, and show it now or later."""
        self.check()
        if self.waiting:
            self._waiting.append(entry)
        elif entry.row is not None and entry.call_id is not None and self._prompt():
            self._waiting.append(entry)
            self._limit = asyncio.get_running_loop().call_later(HOLD_S, self.on_written, math.inf)
        else:
            self._show(entry)

    def on_written(self, row: float) -> None:
        """Show the events up to this row of the worker's own store: they have been sent to NATS, or wait no longer."""
        if self._asking is not None:
            return
        while self._waiting and (self._waiting[0].row or 0) <= row:
            self._show(self._waiting.popleft())
        if not self._waiting and self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def check(self) -> None:
        """Ask the cluster if the worker has been suspended until now."""
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
    """Own events that were shown before the stream had them, for subscribers who join in between. No I/O."""

    def __init__(self) -> None:
        self.lost = False
        """Events were dropped for lack of room since the stream last had everything."""
        self._entries: dict[int, Entry] = {}
        """Row in this worker's own store → the event."""
        self._late: set[int] = set()
        """The rows of events that the stream had before they were shown."""

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        return iter(self._entries.items())

    def put(self, row: int, entry: Entry) -> None:
        """Add an event that has just been shown."""
        if row in self._late:
            return
        self._entries[row] = entry
        if len(self._entries) > ROOM:
            self._entries.pop(next(iter(self._entries)))
            self.lost = True

    def stored(self, row: int, *, waiting: bool) -> None:
        """Remove an event that has arrived from the stream. `waiting`: own events wait now, perhaps this one too."""
        if not waiting:
            self._late.clear()
        if self._entries.pop(row, None) is None and waiting:
            self._late.add(row)
        if not self._entries:
            self.lost = False

    def forget(self, call_id: str) -> None:
        """Remove the events of a call that another worker has ended: new subscribers must not get them."""
        self._entries = {row: entry for row, entry in self._entries.items() if entry.call_id != call_id}
