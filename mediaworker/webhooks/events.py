"""Webhooks of events: each webhook is a subscriber of the hub that queues the events it reads in an outbox.

Its place survives a restart: it is the row up to which every event has been delivered, given up or filtered out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import datetime

import structlog

from config import ConfigError, Settings
from config.metrics.registry import MetricsRegistry
from config.process.tasks import end_tasks, within
from config.settings import EventWebhook
from mediaworker.events.feed_place import DURABLE, FeedReader
from mediaworker.events.frame import decode
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import EventError, type_of
from mediaworker.events.store import StoreError
from mediaworker.webhooks.lanes import OutgoingMessage
from mediaworker.webhooks.outbox import Attempt, WebhookOutbox
from mediaworker.webhooks.post import Poster, signing, wrong_with_secret, wrong_with_url

WAITING, WAITING_CHARS = 16384, 1 << 24
"""The most undelivered events in memory, and their total size in characters. Below these limits, calls whose events are
refused do not delay the events of other calls. Beyond them the feed stops reading; the store keeps the events, and they
are read when there is room again."""
PARALLEL = 16
"""The most calls whose events are posted at once: a receiver that does not answer occupies each place for seconds."""
LATE_S = 300.0
"""The lag from which `readyz` shows a warning about a webhook."""
STOP_S = 3.0
PAUSE_S = 1.0
log = structlog.get_logger()


def check(settings: Settings) -> None:
    """Check the settings of webhooks. Raises ConfigError."""
    names: set[str] = set()
    for index, hook in enumerate(settings.webhooks):
        key = f"webhooks[{index}]"
        if hook.name in names:
            raise ConfigError(f"{key}.name", hook.name, "two webhooks have this name")
        names.add(hook.name)
        if wrong := wrong_with_url(hook.url):
            raise ConfigError(f"{key}.url", hook.url, wrong)
        for name, secret in (("secret", hook.secret), ("secret_next", hook.secret_next)):
            if (secret or name == "secret") and (wrong := wrong_with_secret(secret)):
                raise ConfigError(f"{key}.{name}", None, wrong)
        if unknown := set(hook.types) - DURABLE:
            raise ConfigError(f"{key}.types", min(unknown), f"expected some of {', '.join(sorted(DURABLE))}")


class EventFeed(FeedReader):
    """One webhook. Call `start` after the hub's and `stop` before it. `clock` returns Unix time in seconds."""

    def __init__(self, hub: EventHub, settings: EventWebhook, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(hub, f"webhook {settings.name}", limit=WAITING, pause_s=PAUSE_S)
        self.name = settings.name
        self.skips = 0
        """How often events had been erased before they could be sent."""
        self._settings, self._clock = settings, clock
        self._types = frozenset(settings.types)
        self.outbox = WebhookOutbox(
            self._key,
            Poster(),
            signing(settings.secret, settings.secret_next),
            parallel=PARALLEL,
            retry_s=settings.retry_hours * 3600,
            clock=clock,
            on_attempt=self._on_attempt,
        )
        self.refused = ""
        """The error of the latest attempt; empty when it was successful."""
        self._chars = 0

    @property
    def waiting(self) -> int:
        """The number of events that have been read and are not delivered yet."""
        return len(self._place)

    @property
    def lag_s(self) -> float:
        """The age of the oldest event that is not delivered yet."""
        oldest_s = self._place.oldest_s
        return 0.0 if oldest_s is None else max(0.0, self._clock() - oldest_s)

    @property
    def warning(self) -> str | None:
        """A sentence about a long lag and its cause; None while the lag is short."""
        if self.lag_s < LATE_S:
            return None
        why = f": {self.refused}" if self.refused else ""
        return f"webhook {self.name} is {self.lag_s:.0f} s behind, {self.waiting} events wait{why}"

    @property
    def _full(self) -> bool:
        return self._place.full or self._chars >= WAITING_CHARS

    def use(self, settings: EventWebhook) -> None:
        """Apply reloaded settings. For events that have been read already, only secrets and the retry time change."""
        self._settings, self._types = settings, frozenset(settings.types)
        self.outbox.secrets = signing(settings.secret, settings.secret_next)
        self.outbox.retry_s = settings.retry_hours * 3600

    async def start(self) -> None:
        """Start at the stored place; a new webhook begins with the next event. Raises StoreError."""
        import httpx  # noqa: F401  imported here, because a first import during calls would delay them

        await self._load(self._hub.cursor.row)
        await self._save()
        self.outbox.start()
        self._begin()

    async def stop(self) -> None:
        """Wait up to `STOP_S` for the first attempts at all events, and stop. Retries are left to the next start."""
        async with within(STOP_S):
            await self._until(lambda: not self.outbox.lanes.untried and self._place.read_row >= self._hub.cursor.row)
        await end_tasks(*self._tasks)
        await self.outbox.stop()
        with contextlib.suppress(StoreError):
            await self._save()
        await self.outbox.close()

    def _forget(self, call_id: str) -> None:
        for message in self.outbox.forget(call_id):
            self._done(message)
        self._room.set()

    # -- from the hub -------------------------------------------------------------------------------------------------

    async def _on_frame(self, row: int, frame: str, *, more: bool) -> None:
        if row <= self._place.read_row:
            return  # `hello` or periodic metrics, which have no row
        try:
            event = decode(frame)
            time_s = datetime.fromisoformat(event.time).timestamp()
        except (EventError, ValueError) as error:  # the event is damaged on the disk
            log.error("unreadable event", webhook=self.name, error=str(error))
            return
        if self._types and type_of(event.body) not in self._types:
            self._place.skip_to(row)
            self._room.set()
            return
        self._place.add(row, time_s)
        self._chars += len(frame)
        message_id = f"evt_{self._store_id}_{row}"
        self.outbox.add(OutgoingMessage(message_id, event.call_id, self._settings.url, lambda: frame, row=row))

    def _on_again(self, reason: str) -> None:
        log.info("webhook subscribes again", webhook=self.name, reason=reason)

    def _on_skipped(self, reason: str) -> None:
        self.skips += 1
        log.error("webhook skips events that are no longer stored", webhook=self.name, reason=reason)

    # -- from the outbox ----------------------------------------------------------------------------------------------

    async def _on_attempt(self, message: OutgoingMessage, attempt: Attempt) -> None:
        if attempt.state == "failed":
            log.error("webhook event given up", webhook=self.name, call_id=message.lane, error=attempt.error)
        elif attempt.state == "waiting" and message.tries == 1:
            log.warning("webhook", webhook=self.name, call_id=message.lane, error=attempt.error)
        self.refused = attempt.error
        if attempt.state != "waiting":
            self._done(message)
        self._room.set()

    def _done(self, message: OutgoingMessage) -> None:
        self._place.done(message.row)
        self._chars -= len(message.body())


class EventWebhooks:
    """All configured webhooks. Call `start` after the hub's and `stop` before it. Raises ConfigError."""

    def __init__(self, hub: EventHub, settings: Settings) -> None:
        check(settings)
        self.feeds = tuple(EventFeed(hub, hook) for hook in settings.webhooks)

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counter(
            "event_webhook_events",
            "Counts events by webhook and outcome: accepted by the receiver, given up, or skipped because they had "
            "been erased.",
            lambda: {
                (feed.name, outcome): count
                for feed in self.feeds
                for outcome, count in (
                    ("delivered", feed.outbox.delivered), ("given_up", feed.outbox.given_up), ("skipped", feed.skips)
                )
            },
            "webhook", "outcome",
        )  # fmt: skip
        metrics.counter(
            "event_webhook_tries",
            "Counts requests made to webhooks for events.",
            lambda: {feed.name: feed.outbox.tries for feed in self.feeds},
            "webhook",
        )
        metrics.gauge(
            "event_webhook_lag_seconds",
            "Shows the age of the oldest event that a webhook's receiver has not accepted.",
            lambda: {feed.name: feed.lag_s for feed in self.feeds},
            "webhook",
        )

    @property
    def warnings(self) -> list[str]:
        """Sentences about webhooks that are far behind."""
        return [feed.warning for feed in self.feeds if feed.warning is not None]

    def use(self, settings: Settings) -> None:
        """Apply reloaded settings that `check` has passed. Webhooks are added and removed only by a restart."""
        hooks = {hook.name: hook for hook in settings.webhooks}
        for feed in self.feeds:
            feed.use(hooks[feed.name])

    async def start(self) -> None:
        """Raises StoreError."""
        for feed in self.feeds:
            await feed.start()

    async def stop(self) -> None:
        await asyncio.gather(*(feed.stop() for feed in self.feeds))
