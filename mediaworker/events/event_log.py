"""The event log: numbers durable events, has them committed, and keeps the latest of them for resumption.

A durable event waits here for its commit, and all events keep their order. One batch is written at a time; events that
arrive meanwhile form the next batch, so commits group by themselves. The log alone knows which rows are committed,
which were given up (`floor`), and which of the latest are still in memory (the tail).

When the disk refuses a commit or does not answer, the log is in trouble: it hands events on at once, keeps up to
`limit` unwritten events, and tries again every second. `frame` marks the events that are not on the disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice

import structlog

from config.metrics.counters import Histogram
from config.metrics.registry import MetricsRegistry
from mediaworker.events.frame import unstored
from mediaworker.events.schema import CallRecord
from mediaworker.events.store import EventStore, StoreError
from mediaworker.events.subscription import Entry, ResumeError, Subscription
from mediaworker.events.tables import EventRow, Head

log = structlog.get_logger()

GROUP_S = 0.002
"""How long a commit waits for further events, so that the events of one media tick become one transaction."""
BATCH = 256
"""The most events in a commit. They are all handed on at once, so this must be well below a subscriber's queue."""
RETRY_S = 1.0
STALL_S = 1.0
"""When a commit takes longer, events are handed on without it: live text matters more than its place on the disk."""
UNSAVED_MAX = 10_000
"""The most durable events that are kept while the disk refuses them; beyond it the oldest is given up."""
LINE_MAX = 2 * UNSAVED_MAX
"""The most entries that wait to be handed on; beyond it transient entries are dropped."""
LOG_EVERY_S = 60.0
TAIL = 1024
"""The number of durable events that stay in memory, for short resumptions and for the step from replay to live."""
PAGE = 128
EXPIRED_CURSOR = "expired cursor: events behind it are no longer stored"


class EventLog:
    """Accepts entries in the order of their publication and passes them to `hand_on` in that order.

    Outside trouble, an entry with a row is handed on after it has been committed. Row ids only grow.
    """

    def __init__(self, store: EventStore, hand_on: Callable[[Entry], None]) -> None:
        self.limit = UNSAVED_MAX
        self.trouble: str | None = None
        """Why events are not being stored; None while they are."""
        self.floor = 0
        """Row of the latest event that was given up or erased. A subscriber that resumed before it would miss that
        event without notice, so such cursors are expired. Only grows."""
        self.committed = 0
        """The row of the latest event on the disk."""
        self.row = 0
        """The row of the latest durable event that was published."""
        self.visible_row = 0
        """The row of the latest durable event that was handed on."""
        self.first_row = 0
        """The first row of this run. From here on rows have no gaps."""
        self.tail: deque[Entry] = deque()
        self._tail_row = 0
        """Every durable event that was handed on after this row is in the tail."""
        self.write_failures = self.lost = self.shed = self.unstored = 0
        self.commit_s = Histogram()
        self._store, self._hand_on = store, hand_on
        self._line: deque[Entry] = deque()
        self._unsaved: deque[Entry] = deque()
        self._in_flight = 0
        self._lost_records: dict[str, CallRecord] = {}
        self._logged_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._handed_on = 0
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def backlog(self) -> int:
        """The number of durable events that are not on disk yet."""
        return len(self._unsaved)

    def begin(self, head: Head, first_row: int) -> None:
        """Continue from the state of the store. New rows begin at `first_row`."""
        self.row = self.visible_row = self.committed = self._tail_row = head.row
        self.floor, self.first_row = head.floor, first_row

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counter(
            "event_partials_shed",
            "Counts partials that were dropped because commits did not keep up.",
            lambda: self.shed,
        )
        metrics.histogram(
            "event_commit_seconds",
            "Measures how long a commit of events takes, including its wait for the writer's thread.",
            self.commit_s,
        )
        metrics.gauge("event_store_backlog", "Shows how many durable events are not on disk yet.", lambda: self.backlog)
        metrics.gauge("event_store_ok", "Is 1 while events are being stored.", lambda: self.trouble is None)
        metrics.counter(
            "event_store_failures", "Counts commits to the event store that failed.", lambda: self.write_failures
        )
        metrics.counter(
            "event_store_lost",
            "Counts events that were given up because the disk did not accept them.",
            lambda: self.lost,
        )
        metrics.counter(
            "event_store_unstored",
            "Counts durable events that were sent with `stored` false because the disk did not accept them at that "
            "time.",
            lambda: self.unstored,
        )

    @property
    def next_row(self) -> int:
        return max(self.row + 1, self.first_row)

    def put(self, entry: Entry) -> None:
        """Queue an entry. Never blocks. When the line is full, a transient entry is dropped and counted."""
        if entry.row is not None:
            self.row = entry.row
            self._keep(entry)
        elif len(self._line) >= LINE_MAX:
            self.shed += 1
            return
        if self.trouble is not None or (entry.row is None and not self._line):
            self._show(entry)
        else:
            self._line.append(entry)
        if self._unsaved and self._writing is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GROUP_S, self._write)

    def try_again(self) -> None:
        """Write at once instead of at the next retry, because the store works again."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._unsaved:
            self.trouble = None
        self._write()

    async def flush(self) -> None:
        """Wait until everything put so far has been handed on."""
        if self._line:
            done = asyncio.get_running_loop().create_future()
            self._flushes.append((self._handed_on + len(self._line), done))
            await done

    async def stop(self) -> None:
        """Hand on all waiting events and write all unsaved ones; those that failed before are tried once more."""
        await self.flush()
        if self._timer is not None:
            self._timer.cancel()
        self._write()
        if self._writing is not None:
            await self._writing
        if self._timer is not None:
            self._timer.cancel()
        if self._unsaved:
            log.error("events are lost: they could not be stored before the end", events=len(self._unsaved))

    def is_unsaved(self, entry: Entry) -> bool:
        return bool(self._unsaved) and (entry.row or 0) >= (self._unsaved[0].row or 0)

    def holds(self, call_id: str) -> bool:
        """Return whether an event of this call is not on disk yet."""
        return any(entry.call_id == call_id for entry in self._unsaved)

    def frame(self, entry: Entry) -> str:
        """Return the entry's frame, with `stored` false while the event is not on the disk."""
        return unstored(entry.frame) if self.is_unsaved(entry) else entry.frame

    # -- resumption -------------------------------------------------------------------------------------------------

    def raise_floor(self, row: int) -> None:
        """Expire all cursors before `row`."""
        self.floor = max(self.floor, row)

    def is_expired(self, row: int) -> bool:
        return 0 < row < self.floor

    async def has_row(self, row: int) -> bool:
        """Return whether a subscriber may resume after this row. Raises StoreError."""
        # Rows of this run have no gaps; about earlier rows only the store knows.
        if row in (0, self._tail_row, self.floor) or row >= self.first_row:
            return True
        return await self._store.read(lambda database: database.has_row(row))

    async def page(self, subscription: Subscription) -> list[tuple[int, str]] | None:
        """Return the next (row, frame) pairs of a subscription that catches up, and advance its `scanned`.

        None: it has caught up. Raises ResumeError and StoreError.
        """
        after, until = subscription.scanned, self._tail_row
        if self.is_expired(after):
            raise ResumeError(EXPIRED_CURSOR)
        if after < until:
            call, types = subscription.call, subscription.types
            # Rows beyond `until` come from the tail and not from the disk, where events may be that are committed but
            # not handed on yet: a replay must not show them before the live subscribers see them.
            rows = await self._store.read(lambda database: database.page(after, until, PAGE, call_id=call, types=types))
            # Retention raises the floor before it deletes rows. So a page read without a gap passes this check, and a
            # page from which rows may have been deleted fails it.
            if self.is_expired(after):
                raise ResumeError(EXPIRED_CURSOR)
            subscription.scanned = rows[-1][0] if len(rows) == PAGE else until
            return rows
        # One page per turn of the loop, so that a long resumption does not delay the media.
        await asyncio.sleep(0)
        if after < self._tail_row:
            return []  # the tail has lost the next rows meanwhile, so they are read from the disk
        behind = [entry for entry in self.tail if (entry.row or 0) > after][:PAGE]
        if not behind:
            return None
        subscription.scanned = behind[-1].row or 0
        return [(entry.row or 0, self.frame(entry)) for entry in behind if subscription.wants(entry)]

    def forget(self, call_id: str) -> None:
        """Drop an erased call's events from the tail."""
        if any(entry.call_id == call_id for entry in self.tail):
            self.tail = deque(entry for entry in self.tail if entry.call_id != call_id)

    def _show(self, entry: Entry) -> None:
        if entry.row is not None:
            self.visible_row = entry.row
            self.tail.append(entry)
            self._trim()
        self._hand_on(entry)

    def _trim(self) -> None:
        """Shorten the tail to `TAIL` events. An event that is not on disk stays until the tail is `limit` longer than
        that; then it is given up, and the floor rises to it."""
        while len(self.tail) > TAIL:
            if self.is_unsaved(self.tail[0]):
                if len(self.tail) <= TAIL + self.limit:
                    return
                self.raise_floor(self.tail[0].row or 0)
            self._tail_row = self.tail.popleft().row or 0

    # -- commits ----------------------------------------------------------------------------------------------------

    def _keep(self, entry: Entry) -> None:
        self._unsaved.append(entry)
        if len(self._unsaved) <= self.limit:
            return
        self.fail("the disk does not keep up")
        assert self._in_flight < len(self._unsaved) - 1
        oldest = self._unsaved[self._in_flight]
        del self._unsaved[self._in_flight]
        assert oldest.row is not None
        self.raise_floor(oldest.row)
        self.lost += 1
        if oldest.record is not None:
            # The record outlives its event: without it the next start would find the call open and end it again.
            self._lost_records[oldest.record.call_id] = oldest.record

    def _write(self) -> None:
        self._timer = None
        if self._writing is None and self._unsaved:
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name="events-write")

    async def _write_all(self) -> None:
        try:
            while self._unsaved:
                await self._write_batch()
        except StoreError as error:
            self.write_failures += 1
            self.fail(str(error))
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._write)
        else:
            if self.trouble is not None:
                log.info("events are stored again", lost=self.lost)
                self.trouble = None
        finally:
            self._writing = None

    async def _write_batch(self) -> None:
        loop = asyncio.get_running_loop()
        batch = list(islice(self._unsaved, BATCH))
        rows = [EventRow(entry.row or 0, entry.call_id, entry.seq, entry.type, entry.frame) for entry in batch]
        orphans, self._lost_records = self._lost_records, {}
        records = orphans | {entry.record.call_id: entry.record for entry in batch if entry.record is not None}
        started_s = loop.time()
        late = loop.call_later(STALL_S, self.fail, f"the disk has not answered for {STALL_S:g} s")
        self._in_flight = len(batch)
        try:
            await self._store.append(rows, list(records.values()), self.floor)
        except StoreError:
            self._lost_records = orphans | self._lost_records
            raise
        finally:
            late.cancel()
            self._in_flight = 0
        self.commit_s.observe(loop.time() - started_s)
        for _ in batch:
            self._unsaved.popleft()
        self.committed = rows[-1].id
        self._release(rows[-1].id)

    def fail(self, reason: str) -> None:
        """Enter the state of trouble, until a retry succeeds or `try_again` is called."""
        now = asyncio.get_running_loop().time()
        if self._logged_s is None or now - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now
            log.error("events are not being stored", reason=reason, unsaved=len(self._unsaved), lost=self.lost)
        self.trouble = reason
        self._release(None)

    def _release(self, row: int | None) -> None:
        """Hand on the waiting events up to `row`, with the transient ones that follow it; None: all of them."""
        while self._line:
            head = self._line[0].row
            if row is not None and head is not None and head > row:
                break
            self._show(self._line.popleft())
            self._handed_on += 1
        while self._flushes and self._flushes[0][0] <= self._handed_on:
            done = self._flushes.popleft()[1]
            if not done.done():
                done.set_result(None)
