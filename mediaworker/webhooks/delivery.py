"""One webhook: a subscriber of the hub that posts what it gets, and keeps its place over restarts.

At least once: what was taken just before a kill is posted again, under the same `webhook-id`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import datetime

import structlog

from config.settings import EventWebhook
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import BODIES, EventError, decode, is_durable, tag_of, type_of
from mediaworker.events.store import StoreError
from mediaworker.events.subscription import Cursor, ResumeError, SubscriptionClosed
from mediaworker.webhooks.lanes import Item, Lanes
from mediaworker.webhooks.post import Poster, Refusal, wait_s

DURABLE = frozenset(tag_of(kind) for kind in BODIES if kind.DURABLE)
"""What a webhook may ask for."""
WAITING = 512
"""Events in memory. Beyond it the store keeps them, and they are read again when there is room."""
SAVE_S = 1.0
STOP_S = 3.0
PAUSE_S = 1.0
log = structlog.get_logger()


class Delivery:
    """`start` after the hub, `stop` before it. `clock` gives Unix time in seconds."""

    def __init__(self, hub: EventHub, settings: EventWebhook, *, clock: Callable[[], float] = time.time) -> None:
        self.name = settings.name
        self.delivered = self.tries = self.given_up = self.skips = 0
        self._hub, self._settings, self._clock = hub, settings, clock
        self._lanes = Lanes(0, WAITING)
        self._poster = Poster()
        self._store_id, self._types = "", frozenset(settings.types)
        self._saved = (-1, -1)
        """The row in the store, and in which of its files."""
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._posts: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waiting(self) -> int:
        """Events read and not yet taken."""
        return len(self._lanes)

    @property
    def lag_s(self) -> float:
        """The age of the oldest of them."""
        oldest_s = self._lanes.oldest_s
        return 0.0 if oldest_s is None else max(0.0, self._clock() - oldest_s)

    async def start(self) -> None:
        """Raises StoreError. A webhook that is new begins with what happens from now on."""
        import httpx  # noqa: F401  here, not while calls wait

        here = self._hub.cursor
        saved = await self._hub.read(lambda database: database.place(self._key))
        self._store_id = here.store_id
        self._hub.on_erased.append(self._forget)
        self._lanes = Lanes(here.row if saved is None else saved, WAITING)
        await self._save()
        create = asyncio.get_running_loop().create_task
        self._tasks = [
            create(self._read(), name=f"webhook {self.name}: read"),
            create(self._send(), name=f"webhook {self.name}: send"),
            create(self._remember(), name=f"webhook {self.name}: remember"),
        ]

    async def stop(self) -> None:
        """What has never been tried gets a moment; what waits for another try is tried by the next start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while self._lanes.untried or self._lanes.read_row < self._hub.cursor.row:
                    self._room.clear()
                    await self._room.wait()
        tasks = [*self._tasks, *self._posts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await self._save()
        await self._poster.close()

    def _forget(self, call_id: str) -> None:
        self._lanes.forget(call_id)
        self._room.set()
        self._changed.set()

    # -- from the hub -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            try:
                await self._follow()
            except ResumeError as error:
                await self._skip(error)
            except (SubscriptionClosed, StoreError) as error:
                log.info("webhook reads again", webhook=self.name, reason=str(error))
            await asyncio.sleep(PAUSE_S)

    async def _follow(self) -> None:
        """Until the hub or the store ends it, or what waits fills the memory."""
        after = Cursor(self._store_id, self._lanes.read_row)
        # All that is durable: what is not wanted moves the place on.
        subscription = self._hub.subscribe(after=str(after), types=DURABLE)
        try:
            async for frame in subscription:
                self._take(frame)
                if self._lanes.full:
                    break
        finally:
            subscription.close()
        while self._lanes.full:
            self._room.clear()
            await self._room.wait()

    def _take(self, frame: str) -> None:
        try:
            event = decode(frame)
            row = Cursor.parse(event.cursor).row
            time_s = datetime.fromisoformat(event.time).timestamp()
        except (EventError, ValueError) as error:  # a disk that forgets
            log.error("unreadable event", webhook=self.name, error=str(error))
            return
        if row <= self._lanes.read_row or not is_durable(event.body):
            return  # hello, or periodic metrics
        if self._types and type_of(event.body) not in self._types:
            self._lanes.passed(row)
            self._room.set()
            return
        self._lanes.add(Item(row, event.call_id, frame, time_s))
        self._changed.set()

    async def _skip(self, error: ResumeError) -> None:
        """What is left of the past has been erased before it could be told."""
        self.skips += 1
        log.error("webhook skips events that are no longer stored", webhook=self.name, reason=error.reason)
        floor = self._hub.journal.floor
        self._lanes.passed(floor if floor > self._lanes.read_row else self._hub.cursor.row)

    # -- to the receiver ----------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            now_s = self._clock()
            if len(self._posts) < self._settings.parallel:
                for item in self._lanes.ready(now_s, self._settings.parallel - len(self._posts)):
                    task = loop.create_task(self._post(item), name=f"webhook {self.name} {item.row}")
                    self._posts.add(task)
                    task.add_done_callback(self._posts.discard)
            due_s = self._lanes.next_due_s() if len(self._posts) < self._settings.parallel else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due_s is None else max(0.0, due_s - now_s)):
                    await self._changed.wait()

    async def _post(self, item: Item) -> None:
        settings = self._settings
        self.tries += 1
        item.tries += 1
        message_id = f"evt_{self._store_id}_{item.row}"
        now_s = self._clock()
        item.first_s = item.first_s or now_s
        try:
            refusal = await self._poster.post(settings.url, settings.secret, message_id, item.frame, now_s)
        except Exception as error:  # ours: the call's other events must go on all the same
            log.exception("webhook failed", webhook=self.name)
            refusal = Refusal(repr(error))
        next_s = self._clock() + wait_s(item.tries)
        if refusal is None:
            self.delivered += 1
            self._lanes.done(item)
        elif refusal.gone or next_s > item.first_s + settings.retry_hours * 3600:
            self.given_up += 1
            log.error("webhook event given up", webhook=self.name, call_id=item.call_id, error=refusal.reason)
            self._lanes.done(item)
        else:
            if item.tries == 1:
                log.warning("webhook", webhook=self.name, call_id=item.call_id, error=refusal.reason)
            self._lanes.again(item, next_s)
        self._room.set()
        # Its place among the posts is free only when this task has ended.
        asyncio.get_running_loop().call_soon(self._changed.set)

    # -- the place ----------------------------------------------------------------------------------------------------

    async def _remember(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            with contextlib.suppress(StoreError):  # a full disk says so elsewhere
                await self._save()

    async def _save(self) -> None:
        row = self._lanes.done_row
        # While the disk is in trouble events go out before they are stored: a place among those would be no place.
        place = row, sum(self._hub.store.renewed.values())
        if place != self._saved and self._hub.trouble is None:
            await self._hub.maintain(lambda database: database.keep_place(self._key, row))
            self._saved = place

    @property
    def _key(self) -> str:
        return f"webhook {self.name}"
